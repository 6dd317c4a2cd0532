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
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from dape_jax.attention.mask import MASKED

# (query, key, value, score_mod, **tokens) -> out [B, T, N, H], log-sum-exp.
LocalAttention = Callable[..., tuple[jax.Array, jax.Array]]


@dataclasses.dataclass(frozen=True)
class SplitAxes:
  """Axes of the mesh that attention's arrays are split over.

  Attributes:
    all: that the compiler would otherwise decide about; kernels need all of them.
    batch: of rows.
    length: of the queries in a row, and of keys.
    ring: keys go round, rather than being gathered.
  """

  all: tuple[str, ...]
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
    batch, length, kv_length = (_axes_of(name, sizes) for name in _LOGICAL)
  else:
    batch, length, kv_length = tuple(sizes), (), ()
  number = lambda axes: functools.reduce(
      lambda product, axis: product * sizes[axis], axes, 1
  )
  lengths = (query.shape[1], key.shape[1])
  if query.shape[0] % number(batch) or any(n % number(length) for n in lengths):
    return None
  return SplitAxes(
      tuple(sizes), batch, length, ring=bool(length) and kv_length == length
  )


_LOGICAL = ("batch", "length", "kv_length")


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

  def specs(arrays):
    return {
        name: jax.tree.map(functools.partial(spec, name), tree)
        for name, tree in arrays.items()
    }

  def on_device(queries, keys, score_mod):
    if axes.ring:
      return _ring_attention(local, axes.length, queries, keys, score_mod)
    if axes.length:
      keys = _all_parts(keys, axes.length)
    return _call(local, queries, keys, score_mod)

  split = PartitionSpec(axes.batch, axes.length)
  return jax.shard_map(
      on_device,
      in_specs=(specs(queries), specs(keys), PartitionSpec()),
      out_specs=(split, split),
      axis_names=set(axes.all),
      check_vma=False,
  )(queries, keys, score_mod)


def _call(local, queries, keys, score_mod, **settings):
  queries, keys = dict(queries), dict(keys)
  qkv = queries.pop("query"), keys.pop("key"), keys.pop("value")
  return local(*qkv, score_mod, **queries, **keys, **settings)


def _token_axis(name: str, x: jax.Array) -> int:
  return x.ndim - 1 if name.endswith("_positions") else 1


def _map_named(function, arrays: Mapping[str, Any]) -> dict[str, Any]:
  """Returns function(name, array) of all arrays of a dict of trees."""
  return {
      name: jax.tree.map(functools.partial(function, name), tree)
      for name, tree in arrays.items()
  }


def _all_parts(keys, axis):
  """Returns keys, values and what is known of them, of all devices."""

  def gather(name, x):
    return jax.lax.all_gather(x, axis, axis=_token_axis(name, x), tiled=True)

  return _map_named(gather, keys)


def _ring_attention(local, axis, queries, keys, score_mod):
  """Returns attention to the keys of all devices, which go round in a ring."""
  settings = {}
  if score_mod is not None and score_mod.scope == "row":
    raise NotImplementedError(
        f"{type(score_mod.function).__name__} needs whole rows of scores, and a"
        " ring has parts of them; gather the keys instead (config.mesh.ring=False,"
        ' or no rule for "kv_length").'
    )
  if score_mod is not None and score_mod.halo:
    keys = _with_neighbours(keys, score_mod.halo, axis)
    settings["kv_halo"] = True
  function = None if score_mod is None else score_mod.function
  params = {} if score_mod is None else score_mod.params

  def attend(params, floats, integers):
    queries, keys = (a | b for a, b in zip(floats, integers))
    mod = function and score_mod.replace(params=params)
    return _call(local, queries, keys, mod, **settings)

  is_exact = lambda name: name.endswith(("_positions", "_segment_ids"))
  floats, integers = (
      tuple(
          {k: x for k, x in side.items() if is_exact(k) == exact}
          for side in (queries, keys)
      )
      for exact in (False, True)
  )
  return _ring(attend, axis, params, floats, integers)


def _with_neighbours(keys, halo: int, axis):
  """Returns keys, and what is known of them, with `halo` more at either end.

  They are those of the devices beside, or, at the ends of a row, such as exist at
  no position.
  """
  size = jax.lax.axis_size(axis)
  forward = [(i, i + 1) for i in range(size - 1)]
  backward = [(i + 1, i) for i in range(size - 1)]

  def extend(name, x):
    if name == "value":
      return x
    at = _token_axis(name, x)
    # Who gets nothing gets zeros; of positions these must be -1.
    shift = 1 if name.endswith("_positions") else 0
    part = functools.partial(jax.lax.slice_in_dim, x + shift, axis=at)
    before, after = part(-halo, None), part(0, halo)
    before = jax.lax.ppermute(before, axis, forward) - shift
    after = jax.lax.ppermute(after, axis, backward) - shift
    return jnp.concatenate([before, x, after], axis=at)

  return _map_named(extend, keys)


def _to_next(tree, axis):
  """Returns what the device before had, round the ring."""
  size = jax.lax.axis_size(axis)
  turn = [(i, (i + 1) % size) for i in range(size)]
  return jax.tree.map(lambda x: jax.lax.ppermute(x, axis, turn), tree)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _ring(attend, axis, params, floats, integers):
  """Returns out and log-sum-exp over the keys of all devices.

  Args:
    attend: (params, floats, integers) to out and log-sum-exp of the keys given.
    axis: of the mesh.
    params: of the score modifier.
    floats: (of queries, of keys) that have gradients.
    integers: (of queries, of keys), positions and ids.
  """
  (of_queries, keys), (q_integers, kv_integers) = floats, integers

  def step(carry, _):
    kv, out, lse = carry
    next_kv = _to_next(kv, axis)
    part, part_lse = attend(params, (of_queries, kv[0]), (q_integers, kv[1]))
    total = jnp.logaddexp(lse, part_lse)
    weigh = lambda x, x_lse: x * jnp.exp(x_lse - total)[..., None]
    out = weigh(out, lse) + weigh(part.astype(out.dtype), part_lse)
    return (next_kv, out, total), None

  query, value = of_queries["query"], keys["value"]
  dtype = jnp.promote_types(query.dtype, jnp.float32)
  carry = (
      (keys, kv_integers),
      jnp.zeros((*query.shape[:3], value.shape[-1]), dtype),
      jnp.full(query.shape[:3], MASKED, dtype),
  )
  (_, out, lse), _ = jax.lax.scan(step, carry, length=jax.lax.axis_size(axis))
  return out.astype(query.dtype), lse


def _ring_forward(attend, axis, params, floats, integers):
  out, lse = _ring(attend, axis, params, floats, integers)
  return (out, lse), (params, floats, integers, out, lse)


def _ring_backward(attend, axis, kept, cotangents):
  """Goes round once more, with the gradient of the keys beside the keys.

  A part's output enters the whole one with the weight w = exp(lse_s - lse), so
  that d_out_s = w d_out, and d_lse_s = w (d_lse + d_out . (out_s - out)).
  """
  params, floats, integers, out, lse = kept
  (of_queries, keys), (q_integers, kv_integers) = floats, integers
  d_out, d_lse = cotangents
  dtype = lse.dtype
  out, d_out = out.astype(dtype), d_out.astype(dtype)
  zeros = lambda tree: jax.tree.map(lambda x: jnp.zeros(x.shape, dtype), tree)
  add = lambda a, b: jax.tree.map(lambda x, y: x + y.astype(dtype), a, b)

  def step(carry, _):
    kv, d_keys, d_queries, d_params = carry
    next_kv = _to_next(kv, axis)
    (part, part_lse), pull = jax.vjp(
        lambda params, queries, keys: attend(
            params, (queries, keys), (q_integers, kv[1])
        ),
        params,
        of_queries,
        kv[0],
    )
    weight = jnp.exp(part_lse - lse)
    change = jnp.sum(d_out * (part.astype(dtype) - out), axis=-1)
    d_part = (weight[..., None] * d_out).astype(part.dtype)
    d_params_part, d_queries_part, d_keys_part = pull(
        (d_part, weight * (d_lse + change))
    )
    return (
        next_kv,
        _to_next(add(d_keys, d_keys_part), axis),
        add(d_queries, d_queries_part),
        add(d_params, d_params_part),
    ), None

  carry = (
      (keys, kv_integers),
      zeros(keys),
      zeros(of_queries),
      zeros(params),
  )
  (_, d_keys, d_queries, d_params), _ = jax.lax.scan(
      step, carry, length=jax.lax.axis_size(axis)
  )
  cast = lambda d, x: jax.tree.map(lambda a, b: a.astype(b.dtype), d, x)
  return (
      cast(d_params, params),
      (cast(d_queries, of_queries), cast(d_keys, keys)),
      None,
  )


_ring.defvjp(_ring_forward, _ring_backward)
