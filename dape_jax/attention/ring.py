"""Ring attention: keys rotate around the devices of a mesh.

Every device holds a shard of each row's queries and keys. In each of n steps it
attends to the keys it holds, updates the running softmax, and passes the keys
to the next device. The backward pass makes a second round, in which the
gradients of the keys travel with the keys (Liu et al. 2023, arXiv 2310.01889;
here with all heads on every device and any score modifier). Runs within
`jax.shard_map`, see `sharded`.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dape_jax.attention.mask import MASKED


def call(local, queries, keys, score_mod, **settings):
  """Calls `local` with its arguments given as dicts, see `sharded`."""
  queries, keys = dict(queries), dict(keys)
  qkv = queries.pop("query"), keys.pop("key"), keys.pop("value")
  return local(*qkv, score_mod, **queries, **keys, **settings)


def token_axis(name: str, x: jax.Array) -> int:
  """Returns the token axis of one of attention's arguments."""
  return x.ndim - 1 if name.endswith("_positions") else 1


def map_named(function, arrays: Mapping[str, Any]) -> dict[str, Any]:
  """Returns function(name, array) for every array in a dict of trees."""
  return {
      name: jax.tree.map(functools.partial(function, name), tree)
      for name, tree in arrays.items()
  }


def ring_attention(local, axis, queries, keys, score_mod):
  """Returns attention to the keys of all devices, passed around a ring."""
  settings = {}
  if score_mod is not None and score_mod.scope == "row":
    raise NotImplementedError(
        f"{type(score_mod.function).__name__} needs whole rows of scores, which"
        " ring attention splits; gather the keys instead"
        ' (config.mesh.ring=False, or no rule for "kv_length").'
    )
  if score_mod is not None and score_mod.halo:
    keys = _with_neighbours(keys, score_mod.halo, axis)
    settings["kv_halo"] = True
  function = None if score_mod is None else score_mod.function
  params = {} if score_mod is None else score_mod.params

  def attend(params, floats, integers):
    queries, keys = (a | b for a, b in zip(floats, integers))
    mod = function and score_mod.replace(params=params)
    return call(local, queries, keys, mod, **settings)

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
  """Returns keys and their token data extended by `halo` tokens on each side.

  They come from the neighboring devices. At the ends of a row they are padding
  at position -1.
  """
  size = jax.lax.axis_size(axis)
  forward = [(i, i + 1) for i in range(size - 1)]
  backward = [(i + 1, i) for i in range(size - 1)]

  def extend(name, x):
    if name == "value":
      return x
    at = token_axis(name, x)
    # ppermute yields zeros without a source; padding has position -1.
    shift = 1 if name.endswith("_positions") else 0
    part = functools.partial(jax.lax.slice_in_dim, x + shift, axis=at)
    before, after = part(-halo, None), part(0, halo)
    before = jax.lax.ppermute(before, axis, forward) - shift
    after = jax.lax.ppermute(after, axis, backward) - shift
    return jnp.concatenate([before, x, after], axis=at)

  return map_named(extend, keys)


def _to_next(tree, axis):
  """Returns the tree of the previous device in the ring."""
  size = jax.lax.axis_size(axis)
  turn = [(i, (i + 1) % size) for i in range(size)]
  return jax.tree.map(lambda x: jax.lax.ppermute(x, axis, turn), tree)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _ring(attend, axis, params, floats, integers):
  """Returns output and log-sum-exp over the keys of all devices.

  Args:
    attend: maps (params, floats, integers) to output and log-sum-exp over the
      given keys.
    axis: name of the mesh axis.
    params: parameters of the score modifier.
    floats: (query arrays, key arrays) that have gradients.
    integers: (query arrays, key arrays): positions and segment ids.
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
  """Makes a second round, in which the keys carry their gradients.

  A shard's output has weight w = exp(lse_s - lse) in the result, so that
  d_out_s = w d_out and d_lse_s = w (d_lse + d_out . (out_s - out)).
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
