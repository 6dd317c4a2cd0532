"""Attention by tiles with an online softmax: memory linear in the length.

Runs everywhere XLA does. The scores of all heads of one tile exist at a time, so
that a score modifier can mix heads. The backward pass keeps the output and the
log-sum-exp, computes every tile anew, and takes `jax.vjp` of the tile function.
Tiles in which no query sees a key are passed over.
"""

import dataclasses
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from dape_jax.attention import tiling
from dape_jax.attention.batching import map_batch
from dape_jax.attention.mask import MASKED, visible_mask, where_tokens
from dape_jax.encodings.base import ScoreMod, Tile, TileFunction


@dataclasses.dataclass(frozen=True)
class _Call:
  """What is static about a call."""

  function: TileFunction | None
  causal: bool
  window: int | None
  scale: float
  q_block: int
  kv_block: int

  @property
  def halo(self) -> int:
    return 0 if self.function is None else self.function.halo


@flax.struct.dataclass
class _Tokens:
  """What is known of each query or each key, token axis first.

  Keys have `halo` more at either end than there are values.
  """

  positions: jax.Array
  segment_ids: jax.Array | None
  features: Any

  def block(self, start, size: int) -> "_Tokens":
    return jax.tree.map(lambda x: _block(x, start, size), self)


def _block(x: jax.Array, start, size: int, axis: int = 0) -> jax.Array:
  return lax.dynamic_slice_in_dim(x, start, size, axis)


def _add_block(x: jax.Array, update: jax.Array, start, axis: int = 0):
  """Returns x with `update` added to it from `start` on."""
  old = _block(x, start, update.shape[axis], axis)
  new = old + update.astype(x.dtype)
  return lax.dynamic_update_slice_in_dim(x, new, start, axis)


@functools.partial(
    jax.jit,
    static_argnames=("causal", "window", "scale", "q_block", "kv_block"),
)
def chunked_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    score_mod: ScoreMod | None,
    *,
    q_positions: jax.Array,
    kv_positions: jax.Array,
    q_segment_ids: jax.Array | None,
    kv_segment_ids: jax.Array | None,
    q_features,
    kv_features,
    causal: bool,
    window: int | None,
    scale: float,
    q_block: int | None = None,
    kv_block: int | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Returns `api.attention`'s output and the log-sum-exp of its scores.

  Args:
    q_block, kv_block: at most so many queries and keys make a tile; by default
      `tiling.default_blocks`. A score modifier of scope "row" gets all keys.

  Returns:
    [B, T, N, Hv] in query's dtype, and [B, T, N] in float32 (or wider), MASKED
    for a query that sees no key.
  """
  batch, num_queries = query.shape[:2]
  num_keys = key.shape[1]
  function = None if score_mod is None else score_mod.function
  params = {} if score_mod is None else score_mod.params
  defaults = tiling.default_blocks()
  q_block = tiling.even_block(num_queries, q_block or defaults[0])
  kv_block = tiling.even_block(num_keys, kv_block or defaults[1])
  if function is not None and function.scope == "row":
    kv_block = num_keys
  call = _Call(function, causal, window, scale, q_block, kv_block)

  q_pad = (0, -num_queries % q_block)
  kv_pad = (call.halo, call.halo + -num_keys % kv_block)
  arguments = {
      "query": _pad(jnp.swapaxes(query, 1, 2), q_pad, 2),
      "key": _pad(jnp.swapaxes(key, 1, 2), kv_pad, 2),
      "value": _pad(jnp.swapaxes(value, 1, 2), kv_pad, 2),
      "q_positions": _pad(q_positions, q_pad, q_positions.ndim - 1, -1),
      "kv_positions": _pad(kv_positions, kv_pad, kv_positions.ndim - 1, -1),
      "q_segment_ids": _pad(q_segment_ids, q_pad, 1),
      "kv_segment_ids": _pad(kv_segment_ids, kv_pad, 1),
      "q_features": _pad(q_features, q_pad, 1),
      "kv_features": _pad(kv_features, kv_pad, 1),
  }
  out_BxNxTxH, lse_BxNxT = map_batch(
      functools.partial(_attention_of_group, call, params),
      arguments,
      together=tiling.elements_together(batch, q_block, kv_block),
  )
  out_BxTxNxH = jnp.swapaxes(out_BxNxTxH[:, :, :num_queries], 1, 2)
  return out_BxTxNxH, jnp.swapaxes(lse_BxNxT[:, :, :num_queries], 1, 2)


def _pad(tree, widths: tuple[int, int], axis: int, value=0):
  def pad(x):
    all_widths = [(0, 0)] * x.ndim
    all_widths[axis] = widths
    return jnp.pad(x, all_widths, constant_values=value)

  return jax.tree.map(pad, tree)


def _attention_of_group(call: _Call, params, batched, shared):
  """Returns output and log-sum-exp of a few batch elements."""
  key_range = _key_range(call, batched | shared)

  def one(element):
    element = element | shared
    q, kv = (
        _Tokens(
            element[f"{side}_positions"],
            element[f"{side}_segment_ids"],
            element[f"{side}_features"],
        )
        for side in ("q", "kv")
    )
    qkv = (element[name] for name in ("query", "key", "value"))
    return _attention(call, params, *qkv, q, kv, key_range)

  return jax.vmap(one)(batched)


def _key_range(call: _Call, arguments):
  """Returns the first and one past the last key block of each query block.

  One range for the group: with a trip count for each element, a batched loop
  would copy all it carries at every turn.
  """
  bounds = []
  for side, block, halo in (
      ("q", call.q_block, 0),
      ("kv", call.kv_block, call.halo),
  ):
    tokens = (arguments[f"{side}_positions"], arguments[f"{side}_segment_ids"])
    # Halves of the halo lie at both ends; the blocks are what is between.
    tokens = jax.tree.map(
        lambda x, halo=halo: x[..., halo : x.shape[-1] - halo], tokens
    )
    bounds.append(tiling.block_bounds(*tokens, block))
  occupied = tiling.occupied_tiles(
      *bounds, causal=call.causal, window=call.window
  )
  return tiling.block_range(occupied.any(range(occupied.ndim - 2)))


@flax.struct.dataclass
class _TileInputs:
  """What a tile is made of; keys and `tile` with the halo, the rest without."""

  q_NxtxH: jax.Array
  k_KxsxH: jax.Array
  v_KxsxH: jax.Array
  visible_txs: jax.Array
  features: tuple[Any, Any]
  tile: Tile


def _tile_inputs(call: _Call, q_NxtxH, q: _Tokens, key, value, kv: _Tokens, j):
  """Returns the inputs of the tile of some queries and key block j."""
  start, halo = j * call.kv_block, call.halo
  kv = kv.block(start, call.kv_block + 2 * halo)
  visible_txs = visible_mask(
      q.positions,
      kv.positions,
      q.segment_ids,
      kv.segment_ids,
      causal=call.causal,
      window=call.window,
  )
  # What takes no part may hold anything, NaN included: 0 * NaN is NaN.
  q_seeing, k_seen = visible_txs.any(1), visible_txs.any(0)
  k_KxsxH = _block(key, start, call.kv_block + 2 * halo, 1)
  v_KxsxH = _block(value, start + halo, call.kv_block, 1)
  inner = slice(halo, halo + call.kv_block)
  return _TileInputs(
      q_NxtxH=where_tokens(q_seeing, q_NxtxH, 1),
      k_KxsxH=where_tokens(k_seen, k_KxsxH, 1),
      v_KxsxH=where_tokens(k_seen[inner], v_KxsxH, 1),
      visible_txs=visible_txs[:, inner],
      features=(
          where_tokens(q_seeing, q.features, 0),
          where_tokens(k_seen, kv.features, 0),
      ),
      tile=Tile(q.positions[:, None], kv.positions[None, :], visible_txs),
  )


def _raw_scores(call: _Call, inputs: _TileInputs, dtype) -> jax.Array:
  """Returns scale * q k^T, [N, t, s + 2 halo]."""
  q_NxtxH = inputs.q_NxtxH
  scores = _grouped_dot("kth,ksh->kts", q_NxtxH, inputs.k_KxsxH, dtype)
  return call.scale * scores


def _modified_scores(call: _Call, tile: Tile, params, features, scores):
  """Returns what the score modifier makes of the scores, [N, t, s]."""
  if call.function is None:
    return scores
  q_features, kv_features = features
  tile = tile.replace(q_features=q_features, kv_features=kv_features)
  return call.function(params, scores, tile)


def _grouped_dot(equation: str, x: jax.Array, y: jax.Array, dtype) -> jax.Array:
  """Returns the product of x [N, t, .] and y [K, ., .], [N, t, .].

  Query heads n K / N = k read key/value head k.
  """
  grouped = x.reshape(len(y), -1, x.shape[-1])
  out = _dot(equation, grouped, y, dtype)
  return out.reshape(*x.shape[:2], -1)


def _summed_dot(equation: str, x: jax.Array, y: jax.Array, like, dtype):
  """Returns the product over the queries of x and y [N, t, .], [K, ., .]."""
  grouped = (z.reshape(len(like), -1, z.shape[-1]) for z in (x, y))
  return _dot(equation, *grouped, dtype)


def _dot(equation: str, x: jax.Array, y: jax.Array, dtype) -> jax.Array:
  return jnp.einsum(
      equation, x, y, precision="highest", preferred_element_type=dtype
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(call, params, query, key, value, q, kv, key_range):
  """Returns output [N, T, Hv] and log-sum-exp [N, T] of one batch element.

  Args:
    call: static.
    params: of the score modifier.
    query: [N, T, H], T a multiple of call.q_block.
    key, value: [K, S + 2 halo, H], S a multiple of call.kv_block.
    q, kv: what is known of queries and keys.
    key_range: first and one past the last key block of each query block.
  """
  first, end = key_range
  dtype = jnp.promote_types(query.dtype, jnp.float32)

  def query_block(i):
    start = i * call.q_block
    q_NxtxH = _block(query, start, call.q_block, 1)
    q_tokens = q.block(start, call.q_block)

    def key_block(j, carry):
      peak_Nxt, total_Nxt, sum_NxtxH = carry
      inputs = _tile_inputs(call, q_NxtxH, q_tokens, key, value, kv, j)
      scores_Nxtxs = _modified_scores(
          call,
          inputs.tile,
          params,
          inputs.features,
          _raw_scores(call, inputs, dtype),
      )
      scores_Nxtxs = jnp.where(inputs.visible_txs[None], scores_Nxtxs, MASKED)
      new_peak_Nxt = jnp.maximum(peak_Nxt, scores_Nxtxs.max(-1))
      weights_Nxtxs = jnp.exp(scores_Nxtxs - new_peak_Nxt[..., None])
      shrink_Nxt = jnp.exp(peak_Nxt - new_peak_Nxt)
      total_Nxt = shrink_Nxt * total_Nxt + weights_Nxtxs.sum(-1)
      sum_NxtxH = shrink_Nxt[..., None] * sum_NxtxH + _grouped_dot(
          "kts,ksh->kth",
          weights_Nxtxs.astype(value.dtype),
          inputs.v_KxsxH,
          dtype,
      )
      return new_peak_Nxt, total_Nxt, sum_NxtxH

    rows = (query.shape[0], call.q_block)
    carry = (
        # Above MASKED, so that what is masked weighs exp(-inf) = 0 in a row
        # without a visible key too.
        jnp.full(rows, MASKED / 10, dtype),
        jnp.zeros(rows, dtype),
        jnp.zeros((*rows, value.shape[-1]), dtype),
    )
    peak_Nxt, total_Nxt, sum_NxtxH = lax.fori_loop(
        first[i], end[i], key_block, carry
    )
    seeing_Nxt = total_Nxt > 0
    total_Nxt = jnp.where(seeing_Nxt, total_Nxt, 1)
    out_NxtxH = (sum_NxtxH / total_Nxt[..., None]).astype(query.dtype)
    lse_Nxt = jnp.where(seeing_Nxt, peak_Nxt + jnp.log(total_Nxt), MASKED)
    return out_NxtxH, lse_Nxt

  blocks = jnp.arange(query.shape[1] // call.q_block)
  return jax.tree.map(_unblocked, lax.map(query_block, blocks))


def _unblocked(x: jax.Array) -> jax.Array:
  """Returns [N, T, ...] of [blocks, N, block, ...]."""
  x = jnp.moveaxis(x, 0, 1)
  return x.reshape(x.shape[0], -1, *x.shape[3:])


def _attention_forward(call, params, query, key, value, q, kv, key_range):
  out, lse = _attention(call, params, query, key, value, q, kv, key_range)
  kept = (params, query, key, value, q, kv, key_range, out, lse)
  return (out, lse), kept


def _attention_backward(call, kept, cotangents):
  params, query, key, value, q, kv, (first, end), out, lse = kept
  d_out, d_lse = cotangents
  dtype = lse.dtype
  # Row sums of the weights times their cotangents. What reaches the log-sum-exp
  # itself enters every score times its weight.
  delta = jnp.sum(out.astype(dtype) * d_out.astype(dtype), axis=-1) - d_lse
  zeros = lambda tree: jax.tree.map(lambda x: jnp.zeros(x.shape, dtype), tree)

  def query_block(sums, i):
    start = i * call.q_block
    q_NxtxH, d_out_NxtxH, lse_Nxt, delta_Nxt = (
        _block(x, start, call.q_block, 1) for x in (query, d_out, lse, delta)
    )
    q_tokens = q.block(start, call.q_block)

    def key_block(j, carry):
      (d_params, d_key, d_value, d_kv_features), d_q, d_q_features = carry
      inputs = _tile_inputs(call, q_NxtxH, q_tokens, key, value, kv, j)
      scores_Nxtxs, pull = jax.vjp(
          functools.partial(_modified_scores, call, inputs.tile),
          params,
          inputs.features,
          _raw_scores(call, inputs, dtype),
      )
      weights_Nxtxs = jnp.where(
          inputs.visible_txs[None],
          jnp.exp(scores_Nxtxs - lse_Nxt[..., None]),
          0,
      )
      d_weights_Nxtxs = _grouped_dot(
          "kth,ksh->kts", d_out_NxtxH, inputs.v_KxsxH, dtype
      )
      d_scores_Nxtxs = weights_Nxtxs * (d_weights_Nxtxs - delta_Nxt[..., None])
      d_params_tile, d_features, d_raw_Nxtxs = pull(d_scores_Nxtxs)
      d_raw_Nxtxs = (call.scale * d_raw_Nxtxs).astype(key.dtype)
      d_q += _grouped_dot("kts,ksh->kth", d_raw_Nxtxs, inputs.k_KxsxH, dtype)
      d_k = _summed_dot("kts,kth->ksh", d_raw_Nxtxs, inputs.q_NxtxH, key, dtype)
      d_v = _summed_dot(
          "kts,kth->ksh",
          weights_Nxtxs.astype(value.dtype),
          d_out_NxtxH,
          value,
          dtype,
      )
      start = j * call.kv_block
      add_block = lambda x, y: _add_block(x, y, start)
      sums = (
          jax.tree.map(jnp.add, d_params, d_params_tile),
          _add_block(d_key, d_k, start, 1),
          _add_block(d_value, d_v, start + call.halo, 1),
          jax.tree.map(add_block, d_kv_features, d_features[1]),
      )
      d_q_features = jax.tree.map(jnp.add, d_q_features, d_features[0])
      return sums, d_q, d_q_features

    carry = (sums, zeros(q_NxtxH), zeros(q_tokens.features))
    sums, d_q, d_q_features = lax.fori_loop(first[i], end[i], key_block, carry)
    return sums, (d_q, d_q_features)

  blocks = jnp.arange(query.shape[1] // call.q_block)
  sums = zeros((params, key, value, kv.features))
  sums, (d_query, d_q_features) = lax.scan(query_block, sums, blocks)
  d_params, d_key, d_value, d_kv_features = sums
  d_q_features = jax.tree.map(
      lambda x: x.reshape(-1, *x.shape[2:]), d_q_features
  )
  cast = lambda d, x: jax.tree.map(lambda a, b: a.astype(b.dtype), d, x)
  return (
      cast(d_params, params),
      _unblocked(d_query).astype(query.dtype),
      d_key.astype(key.dtype),
      d_value.astype(value.dtype),
      _Tokens(None, None, cast(d_q_features, q.features)),
      _Tokens(None, None, cast(d_kv_features, kv.features)),
      None,
  )


_attention.defvjp(_attention_forward, _attention_backward)
