"""Finds tiles of the score matrix that contain visible pairs.

Positions and segment ids are data, so tiles are classified at run time, from
the smallest and largest position and id of their queries and keys. The tests
are conservative: `may_be_visible` is True for every tile with a visible pair,
and `all_visible` only for tiles in which every pair is visible.
"""

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from dape_jax.attention import target

_LARGEST = np.iinfo(np.int32).max


@flax.struct.dataclass
class BlockBounds:
  """Bounds of the positions and ids in each block, int32 [..., blocks].

  Tokens at negative positions do not exist; id 0 is padding.

  Attributes:
    low, high: smallest and largest position.
    low_existing: smallest nonnegative position.
    low_id, high_id: smallest and largest id, or None without segment ids.
    low_existing_id: smallest id other than padding.
  """

  low: jax.Array
  high: jax.Array
  low_existing: jax.Array
  low_id: jax.Array | None = None
  high_id: jax.Array | None = None
  low_existing_id: jax.Array | None = None


def block_bounds(
    positions: jax.Array, segment_ids: jax.Array | None, block: int
) -> BlockBounds:
  """Returns the bounds of blocks of `block` tokens, which divides the length.

  Args:
    positions: [..., length] int32.
    segment_ids: [..., length] int32, or None.
    block: number of tokens.
  """

  def bounds(x, existing):
    x = x.reshape(*x.shape[:-1], -1, block)
    low_existing = jnp.where(x >= existing, x, _LARGEST).min(-1)
    return x.min(-1), x.max(-1), low_existing

  if segment_ids is None:
    return BlockBounds(*bounds(positions, 0))
  positions = jnp.broadcast_to(positions, segment_ids.shape)
  return BlockBounds(*bounds(positions, 0), *bounds(segment_ids, 1))


def may_be_visible(
    q: BlockBounds, kv: BlockBounds, *, causal: bool, window: int | None
) -> jax.Array:
  """Returns False for tiles in which no query sees a key, bool."""
  visible = kv.high >= 0
  if causal:
    visible &= kv.low_existing <= q.high
  if window is not None:
    visible &= kv.high > q.low - window
    visible &= kv.low_existing < q.high + window
  if q.low_id is not None:
    visible &= (q.high_id > 0) & (kv.high_id > 0)
    visible &= (q.low_existing_id <= kv.high_id) & (
        kv.low_existing_id <= q.high_id
    )
  return visible


def all_visible(
    q: BlockBounds, kv: BlockBounds, *, causal: bool, window: int | None
) -> jax.Array:
  """Returns True for tiles in which every query sees every key, bool."""
  visible = kv.low >= 0
  if causal:
    visible &= kv.high <= q.low
  if window is not None:
    visible &= (q.high - kv.low < window) & (kv.high - q.low < window)
  if q.low_id is not None:
    same = (q.low_id == q.high_id) & (q.low_id == kv.low_id)
    visible &= same & (kv.low_id == kv.high_id) & (q.low_id > 0)
  return visible


def occupied_tiles(
    q: BlockBounds, kv: BlockBounds, *, causal: bool, window: int | None
) -> jax.Array:
  """Returns `may_be_visible` for all tiles, bool [..., q blocks, kv blocks]."""
  q = jax.tree.map(lambda x: x[..., :, None], q)
  kv = jax.tree.map(lambda x: x[..., None, :], kv)
  if q.low.ndim > kv.low.ndim:  # Only kv is shared by the batch.
    kv = jax.tree.map(lambda x: x[None], kv)
  elif q.low.ndim < kv.low.ndim:
    q = jax.tree.map(lambda x: x[None], q)
  occupied = may_be_visible(q, kv, causal=causal, window=window)
  shape = jnp.broadcast_shapes(q.low.shape, kv.low.shape)
  return jnp.broadcast_to(occupied, shape)


def block_range(occupied: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns the first True of the last axis and one past the last, int32.

  Both are 0 if there is none.
  """
  blocks = occupied.shape[-1]
  first = jnp.argmax(occupied, axis=-1)
  end = blocks - jnp.argmax(occupied[..., ::-1], axis=-1)
  end = jnp.where(jnp.any(occupied, axis=-1), end, 0)
  return jnp.minimum(first, end).astype(jnp.int32), end.astype(jnp.int32)


# Queries and keys per tile, measured on 2 CPU cores. Smaller tiles do not use
# both cores; the hidden layer of larger tiles (32 channels, 2 MiB here) does
# not fit in the cache. With four batch elements per step, smaller tiles have
# the same number of pairs, and fewer of them are masked by causality.
CPU_BLOCKS = (128, 128)
CPU_BLOCKS_OF_FOUR = (64, 64)
# From the TPU compiler's estimates for DAPE (v5e, 12 heads of 64).
ACCELERATOR_BLOCKS = (256, 256)


def default_blocks(batch: int) -> tuple[int, int]:
  """Returns the maximum number of queries and keys per tile in XLA."""
  if target.target_platform() != "cpu":
    return ACCELERATOR_BLOCKS
  return CPU_BLOCKS if batch % 4 else CPU_BLOCKS_OF_FOUR


def even_block(length: int, limit: int) -> int:
  """Returns the block size that covers `length` with the least padding.

  Uses the fewest blocks of at most `limit` tokens: 129 tokens take two blocks
  of 72, not two of 128. Multiple blocks have a size that is a multiple of 8.
  """
  blocks = max(1, -(-length // limit))
  block = -(-length // blocks)
  return block if blocks == 1 else min(-(-block // 8) * 8, limit)


def elements_together(batch: int, q_block: int, kv_block: int) -> int:
  """Returns how many batch elements to process together, a divisor of `batch`.

  Their tiles have at most as many pairs as one full tile.
  """
  q_limit, kv_limit = default_blocks(batch=1)
  wanted = max(1, q_limit * kv_limit // (q_block * kv_block))
  return max(n for n in range(1, min(wanted, batch) + 1) if batch % n == 0)
