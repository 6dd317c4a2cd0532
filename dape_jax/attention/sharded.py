"""Attention of arrays that lie on several devices.

Every device works on its own rows of the batch and its own queries, on tiles of
all heads, by `jax.shard_map`. Which axes of the mesh these are is said by flax's
logical axis rules (`flax.linen.logical_axis_rules`) for "batch", "length" and
"kv_length"; without rules, all axes of the mesh split the batch. (`jax.jit` does
not know a function by the rules it was traced with: set them inside of it.)

Where queries of a row lie on several devices, each gathers all keys and values of
its rows, unless the rules have them split too ("kv_length" as "length"): then
parts of them go round the devices in a ring, and none ever holds more than two.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import AxisType, PartitionSpec

from dape_jax.attention.ring import call, map_named, ring_attention, token_axis

# (query, key, value, score_mod, **tokens) -> out [B, T, N, H], log-sum-exp.
LocalAttention = Callable[..., tuple[jax.Array, jax.Array]]


@dataclasses.dataclass(frozen=True)
class SplitAxes:
  """Axes of the mesh that attention's arrays are split over.

  Attributes:
    batch: of rows.
    length: of the queries in a row, and of keys.
    ring: keys go round, rather than being gathered.
  """

  batch: tuple[str, ...]
  length: tuple[str, ...]
  ring: bool


def _auto_axes() -> dict[str, int]:
  """Returns the axes of the mesh that are left to the compiler, and sizes."""
  mesh = jax.sharding.get_abstract_mesh()
  kinds = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types)
  return {name: size for name, size, kind in kinds if kind == AxisType.Auto}


def is_left_to_compiler() -> bool:
  """Returns whether the compiler would split arrays over devices."""
  return any(size > 1 for size in _auto_axes().values())


def split_axes(query: jax.Array, key: jax.Array) -> SplitAxes | None:
  """Returns how attention is split over devices; None where it is not.

  It is not on one device, nor where a batch or length does not divide.

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
  """Returns the axes of the mesh that a logical axis lies on."""
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
  """Returns out [B, T, N, H] and log-sum-exp [B, T, N] of arrays on a mesh.

  Args:
    local: attention on one device; with `kv_halo=True` for a ring whose score
      modifier reads neighbouring keys (see `chunked.chunked_attention`).
    axes: of `split_axes`.
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
      # Of all: kernels leave none to the compiler.
      axis_names=set(_auto_axes()),
      check_vma=False,
  )(queries, keys, score_mod)


def _all_parts(keys, axis):
  """Returns keys, values and what is known of them, of all devices."""

  def gather(name, x):
    return jax.lax.all_gather(x, axis, axis=token_axis(name, x), tiled=True)

  return map_named(gather, keys)
