"""Key/value cache of a decoder, with slots in order of arrival."""

import flax.struct
import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint


@flax.struct.dataclass
class Cache:
  """Keys and values of all layers, and the position of each slot's token.

  Empty slots have segment id 0 (padding), so nothing attends to them, whatever
  they contain.

  Attributes:
    keys, values: [num_layers, B, S, K * H], with keys already rotated. Heads
      are concatenated because a TPU pads the last axis to a multiple of 128,
      which would double the memory for heads of 64.
    positions: [B, S] int32.
    segment_ids: [B, S] int32.
    filled: int32 scalar, the number of slots in use.
    features: [num_layers, B, S, key_features] float32 of the encoding, or None.
  """

  keys: jax.Array
  values: jax.Array
  positions: jax.Array
  segment_ids: jax.Array
  filled: jax.Array
  features: jax.Array | None = None

  @property
  def capacity(self) -> int:
    """Returns S, the number of slots."""
    return self.positions.shape[1]

  def append_to_layer(
      self,
      layer: jax.Array | int,
      key: jax.Array,
      value: jax.Array,
      kv_features: jax.Array | None = None,
  ) -> "Cache":
    """Returns the cache with one layer's keys and values of the last T tokens.

    Args:
      layer: index of the layer.
      key, value: [B, T, K, H], for the tokens passed to `append_tokens`.
      kv_features: [B, T, F] of the layer's encoding, padded if other layers
        have more features.
    """
    features = self.features
    if kv_features is not None:
      extra = features.shape[-1] - kv_features.shape[-1]
      widths = [(0, 0), (0, 0), (0, extra)]
      new = jnp.pad(kv_features, widths)
      features = append_to_slots(features, layer, new, self.filled)
    return self.replace(
        keys=append_to_slots(self.keys, layer, key, self.filled),
        values=append_to_slots(self.values, layer, value, self.filled),
        features=features,
    )


def empty_cache(
    num_layers: int,
    batch_size: int,
    capacity: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: jnp.dtype,
    key_features: int = 0,
) -> Cache:
  """Returns a cache with `capacity` empty slots.

  `key_features` is `PositionalEncoding.key_features`.
  """
  shape = (num_layers, batch_size, capacity, num_kv_heads * head_dim)
  slots = (batch_size, capacity)
  return Cache(
      keys=jnp.zeros(shape, dtype),
      values=jnp.zeros(shape, dtype),
      positions=jnp.zeros(slots, jnp.int32),
      segment_ids=jnp.zeros(slots, jnp.int32),
      filled=jnp.zeros((), jnp.int32),
      features=(
          jnp.zeros((*shape[:3], key_features), jnp.float32)
          if key_features
          else None
      ),
  )


def next_power_of_two(number: int) -> int:
  """Returns the smallest power of two that is at least `number`; 1 for 0.

  Sizes of caches and chunks are powers of two to limit recompilation.
  """
  return 1 << max(number - 1, 0).bit_length()


def grow_cache(cache: Cache, capacity: int) -> Cache:
  """Returns the cache with empty slots appended up to `capacity`.

  Raises:
    ValueError: `capacity` is smaller than the current one, or the cache has
      already overflowed.
  """
  if not isinstance(cache.filled, jax.core.Tracer) and overfilled(cache):
    raise ValueError(
        f"{int(cache.filled)} tokens were appended to {cache.capacity} slots,"
        " so some are lost. Grow the cache before it is full."
    )
  extra = capacity - cache.capacity
  if extra < 0:
    raise ValueError(
        f"a cache of {cache.capacity} slots cannot shrink to {capacity}."
    )

  def padded(x, axis):
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, extra)
    return jnp.pad(x, widths)

  return cache.replace(
      keys=padded(cache.keys, 2),
      values=padded(cache.values, 2),
      positions=padded(cache.positions, 1),
      segment_ids=padded(cache.segment_ids, 1),
      features=jax.tree.map(lambda x: padded(x, 2), cache.features),
  )


def append_tokens(
    cache: Cache, positions: jax.Array, segment_ids: jax.Array
) -> Cache:
  """Returns the cache with T more slots reserved.

  `Cache.append_to_layer` then writes their keys and values, layer by layer.

  Args:
    cache: the cache.
    positions, segment_ids: [B, T] int32 of the new tokens.

  Raises:
    ValueError: the tokens do not fit. Not raised under jit, where `filled` is
      unknown and exceeds the capacity instead; see `overfilled`.
  """
  length = positions.shape[1]
  if not isinstance(cache.filled, jax.core.Tracer):
    filled = int(cache.filled)
    if filled + length > cache.capacity:
      raise ValueError(
          f"cache of {cache.capacity} slots holds {filled}; {length} more do"
          " not fit. Enlarge it with grow_cache."
      )
  start = (0, cache.filled)
  update = jax.lax.dynamic_update_slice
  return cache.replace(
      positions=update(cache.positions, positions, start),
      segment_ids=update(cache.segment_ids, segment_ids, start),
      filled=cache.filled + length,
  )


def overfilled(cache: Cache) -> jax.Array:
  """Returns whether more tokens were appended than fit, as a bool scalar."""
  return cache.filled > cache.capacity


def append_to_slots(
    slots: jax.Array, layer: jax.Array | int, new: jax.Array, filled: jax.Array
) -> jax.Array:
  """Returns the slots of all layers with T new entries in one layer.

  In a loop over layers that carries the slots, XLA updates them in place and
  does not copy the cache.

  Args:
    slots: [num_layers, B, S, F].
    layer: index of the layer.
    new: [B, T, ...] with F numbers per token; the last token goes into slot
      `filled - 1`.
    filled: number of slots in use, including the new ones.
  """
  new = new.reshape(1, *new.shape[:2], -1).astype(slots.dtype)
  start = (layer, 0, filled - new.shape[2], 0)
  return jax.lax.dynamic_update_slice(slots, new, start)


def slots_of_layer(slots: jax.Array, layer: jax.Array | int) -> jax.Array:
  """Returns one layer's [B, S, F] of the slots [num_layers, B, S, F]."""
  own = jax.lax.dynamic_index_in_dim(slots, layer, keepdims=False)
  # Otherwise a consumer that prefers another layout (a kernel) may make XLA
  # copy the whole cache into that layout.
  return with_layout_constraint(own, Layout(major_to_minor=(0, 1, 2)))


def last_slot(slots: jax.Array, filled: jax.Array, num_new: int) -> jax.Array:
  """Returns the entry before the last `num_new` tokens, [B, ...].

  Returns zeros if there is none.
  """
  index = filled - num_new - 1
  last = jax.lax.dynamic_index_in_dim(slots, index, axis=1, keepdims=False)
  return jnp.where(index < 0, 0, last)
