"""Attention over the batch: sharded over devices, or in groups on one device.

With `jax.shard_map`, every device processes its own rows of the batch and its
own queries, with all heads. Flax's logical axis rules
(`flax.linen.logical_axis_rules`) for "batch", "length" and "kv_length" map
these to axes of the mesh; without rules, all axes of the mesh shard the batch.
Set the rules inside the jitted function, because `jax.jit`'s cache ignores
them.

If the queries of a row are sharded, every device gathers all keys and values of
its rows. If the rules shard the keys as well ("kv_length" like "length"), the
devices instead pass shards of keys around a ring, and no device holds more than
two shards at a time.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from dape_jax.attention.ring import call, map_named, ring_attention, token_axis

# Maps (query, key, value, score_mod, **tokens) to output [B, T, N, Hv] and
# log-sum-exp [B, T, N].
LocalAttention = Callable[..., tuple[jax.Array, jax.Array]]


@dataclasses.dataclass(frozen=True)
class SplitAxes:
  """Mesh axes that shard attention's arguments.

  Attributes:
    batch: axes that shard the batch.
    length: axes that shard the queries and keys of a row.
    ring: pass keys around a ring instead of gathering them.
  """

  batch: tuple[str, ...]
  length: tuple[str, ...]
  ring: bool


def _auto_axes() -> dict[str, int]:
  """Returns the sizes of the mesh axes that the compiler manages."""
  mesh = jax.sharding.get_abstract_mesh()
  kinds = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types)
  return {name: size for name, size, kind in kinds if kind == AxisType.Auto}


def is_left_to_compiler() -> bool:
  """Returns whether the compiler may shard arrays over devices."""
  return any(size > 1 for size in _auto_axes().values())


def split_axes(query: jax.Array, key: jax.Array) -> SplitAxes | None:
  """Returns the mesh axes that shard attention, or None.

  Attention is not sharded on one device, or if the batch size or a length is
  not divisible.

  Args:
    query: [B, T, N, H].
    key: [B, S, K, H].
  """
  if not is_left_to_compiler():
    return None
  sizes = _auto_axes()
  if nn.get_logical_axis_rules():
    names = ("batch", "length", "kv_length")
    batch, length, kv_length = (_axes_of(name, sizes) for name in names)
  else:
    batch, length, kv_length = tuple(sizes), (), ()
  number = lambda axes: math.prod(sizes[axis] for axis in axes)
  lengths = (query.shape[1], key.shape[1])
  if query.shape[0] % number(batch) or any(n % number(length) for n in lengths):
    return None
  return SplitAxes(batch, length, ring=bool(length) and kv_length == length)


def _axes_of(name: str, sizes: Mapping[str, int]) -> tuple[str, ...]:
  """Returns the mesh axes that a logical axis maps to."""
  (axes,) = nn.logical_to_mesh_axes((name,))
  axes = (axes,) if isinstance(axes, str) else axes or ()
  return tuple(axis for axis in axes if axis in sizes)


def split_attention(
    local: LocalAttention,
    axes: SplitAxes,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    score_mod: Any,
    **tokens: Any,
) -> tuple[jax.Array, jax.Array]:
  """Returns output [B, T, N, Hv] and log-sum-exp [B, T, N] on a mesh.

  Args:
    local: attention on one device. Receives `kv_halo=True` in a ring whose
      score modifier uses neighboring keys (see `chunked.chunked_attention`).
    axes: result of `split_axes`.
    query, key, value, score_mod: see `api.attention`.
    **tokens: positions, segment ids and features of queries and keys.
  """
  kv_names = ("kv_positions", "kv_segment_ids", "kv_features")
  queries = {"query": query}
  queries |= {k: x for k, x in tokens.items() if k not in kv_names}
  keys = {"key": key, "value": value}
  keys |= {k: x for k, x in tokens.items() if k in kv_names}

  def spec(name, x):
    if name.endswith("_positions") and x.ndim == 1:
      return PartitionSpec(axes.length)
    return PartitionSpec(axes.batch, axes.length)

  def on_device(queries, keys, score_mod):
    if axes.ring:
      return ring_attention(local, axes.length, queries, keys, score_mod)
    if axes.length:
      keys = _all_parts(keys, axes.length)
    return call(local, queries, keys, score_mod)

  split = PartitionSpec(axes.batch, axes.length)
  return jax.shard_map(
      on_device,
      in_specs=(
          map_named(spec, queries),
          map_named(spec, keys),
          PartitionSpec(),
      ),
      out_specs=(split, split),
      # Manual over all axes, as Pallas calls require.
      axis_names=set(_auto_axes()),
      check_vma=False,
  )(queries, keys, score_mod)


def _all_parts(keys, axis):
  """Returns the keys, values and token data of all devices."""

  def gather(name, x):
    return jax.lax.all_gather(x, axis, axis=token_axis(name, x), tiled=True)

  return map_named(gather, keys)


def map_batch(
    function: Callable[..., Any],
    arguments: dict[str, Any],
    *,
    together: int = 1,
) -> Any:
  """Returns `function(batched, shared)` applied to groups of batch elements.

  Positions of rank 1 are shared by the batch; all other arguments have a
  leading batch axis. On one device the groups run one after another to save
  memory. On several devices all elements form one group, since a loop over a
  sharded axis would gather it on every device.

  Args:
    function: takes two dicts that partition `arguments`: batched ones with a
      leading axis [group], and shared ones; returns arrays [group, ...].
    arguments: trees of arrays, or None.
    together: group size, a divisor of the batch size.
  """
  shared = {
      name: array
      for name, array in arguments.items()
      if name.endswith("_positions") and array.ndim == 1
  }
  batched = {k: v for k, v in arguments.items() if k not in shared}
  batch = batched["query"].shape[0]
  if is_left_to_compiler() or together == batch:
    return function(batched, shared)

  def split(x):
    return x.reshape(batch // together, together, *x.shape[1:])

  out = lax.map(
      lambda group: function(group, shared), jax.tree.map(split, batched)
  )
  return jax.tree.map(lambda x: x.reshape(batch, *x.shape[2:]), out)
