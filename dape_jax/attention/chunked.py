"""Tiled attention with an online softmax, in XLA: memory linear in the length.

A step computes one tile's scores for all heads, so a score modifier can mix
heads. The backward pass keeps only the output and the log-sum-exp, recomputes
every tile, and takes `jax.vjp` of the tile function. Tiles without a visible
pair are skipped.
"""

import dataclasses
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from dape_jax.attention import target, tiling
from dape_jax.attention.mask import (
    MASKED,
    column,
    row,
    visible_mask,
    where_tokens,
)
from dape_jax.attention.sharded import map_batch
from dape_jax.encodings.tile import ScoreMod, Tile, TileFunction


@dataclasses.dataclass(frozen=True)
class _Call:
  """Static settings of a call."""

  function: TileFunction | None
  causal: bool
  window: int | None
  scale: float
  q_block: int
  kv_block: int
  operand_dtype: Any

  @property
  def halo(self) -> int:
    return 0 if self.function is None else self.function.halo


@flax.struct.dataclass
class _Tokens:
  """Positions, ids and features of queries or of keys, token axis first.

  Those of keys extend by `halo` tokens beyond the values on each side.
  """

  positions: jax.Array
  segment_ids: jax.Array | None
  features: Any


def _block(tree: Any, start, size: int) -> Any:
  """Returns `size` tokens of each array, starting at `start`."""
  block = lambda x: lax.dynamic_slice_in_dim(x, start, size)
  return jax.tree.map(block, tree)


def _add_block(tree: Any, update: Any, start) -> Any:
  """Returns the arrays with `update` added, starting at token `start`."""

  def add(x, y):
    y = _block(x, start, len(y)) + y
    return lax.dynamic_update_slice_in_dim(x, y, start, 0)

  return jax.tree.map(add, tree, update)


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
    kv_halo: bool = False,
) -> tuple[jax.Array, jax.Array]:
  """Returns `api.attention`'s output and the log-sum-exp of its scores.

  A score modifier of scope "row" gets whole rows of scores. With `kv_halo`,
  keys, positions, ids and features (but not values) extend by `score_mod.halo`
  tokens on each side. The score modifier uses them as neighbors; they get no
  weight.

  Returns:
    [B, T, N, Hv] in query's dtype, and [B, T, N] in float32 (or wider), MASKED
    for queries that see no key.
  """
  num_keys = value.shape[1]
  q_limit, kv_limit = tiling.default_blocks(len(query))
  function = None if score_mod is None else score_mod.function
  if function is not None and function.scope == "row":
    kv_limit = num_keys
  call = _Call(
      function,
      causal,
      window,
      scale,
      tiling.even_block(query.shape[1], q_limit),
      _dividing_block(num_keys, kv_limit)
      if kv_halo
      else tiling.even_block(num_keys, kv_limit),
      target.operand_dtype(query.dtype),
  )
  arguments = {
      "query": query,
      "key": key,
      "value": value,
      "q_positions": q_positions,
      "kv_positions": kv_positions,
      "q_segment_ids": q_segment_ids,
      "kv_segment_ids": kv_segment_ids,
      "q_features": q_features,
      "kv_features": kv_features,
  }
  params = {} if score_mod is None else score_mod.params
  return _chunked_attention(call, kv_halo, params, arguments)


def _dividing_block(length: int, limit: int) -> int:
  """Returns the largest block that divides `length`.

  Padding would separate the keys from their halo.
  """
  return max(n for n in range(1, limit + 1) if length % n == 0)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _chunked_attention(call: _Call, kv_halo: bool, params, arguments):
  """Returns output and log-sum-exp; see `chunked_attention`."""
  batch, num_queries = arguments["query"].shape[:2]
  num_keys = arguments["value"].shape[1]
  q_pad = (0, -num_queries % call.q_block)
  kv_pad = (call.halo, call.halo + -num_keys % call.kv_block)
  padded = {}
  for name, tree in arguments.items():
    is_positions = name.endswith("_positions")
    if kv_halo and name[0] == "k":
      padded[name] = tree
      continue
    padded[name] = _pad(
        tree,
        q_pad if name[0] == "q" else kv_pad,
        axis=tree.ndim - 1 if is_positions else 1,
        value=-1 if is_positions else 0,
    )
  out, lse = map_batch(
      functools.partial(_attention_of_group, call, params),
      padded,
      together=tiling.elements_together(batch, call.q_block, call.kv_block),
  )
  return out[:, :num_queries], lse[:, :num_queries]


def _pad(tree, widths: tuple[int, int], axis: int, value: int):
  def pad(x):
    all_widths = [(0, 0)] * x.ndim
    all_widths[axis] = widths
    return jnp.pad(x, all_widths, constant_values=value)

  return jax.tree.map(pad, tree)


def _attention_of_group(call: _Call, params, batched, shared):
  """Returns output and log-sum-exp for a group of batch elements."""
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

  All elements of the group share one range. With a trip count per element, a
  batched loop would copy its whole carry in every iteration.
  """
  bounds = []
  for side, block, halo in (
      ("q", call.q_block, 0),
      ("kv", call.kv_block, call.halo),
  ):
    tokens = (arguments[f"{side}_positions"], arguments[f"{side}_segment_ids"])
    # Exclude the halo on both sides.
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
  """Inputs of a tile. Keys and `tile` include the halo, the rest do not.

  Arguments have tokens before heads. Tiles are transposed one at a time, so
  that a long cache is neither copied nor read completely.
  """

  q_NxtxH: jax.Array
  k_KxsxH: jax.Array
  v_Kxsxh: jax.Array
  visible_txs: jax.Array
  features: tuple[Any, Any]
  tile: Tile


def _tile_inputs(call: _Call, q_NxtxH, q: _Tokens, key, value, kv: _Tokens, j):
  """Returns the inputs of the tile of some queries and key block j."""
  start, halo = j * call.kv_block, call.halo
  k_sxKxH, kv = _block((key, kv), start, call.kv_block + 2 * halo)
  v_sxKxH = _block(value, start + halo, call.kv_block)
  visible_txs = visible_mask(
      column(q.positions),
      row(kv.positions),
      column(q.segment_ids),
      row(kv.segment_ids),
      causal=call.causal,
      window=call.window,
  )
  # XLA would fuse the mask's comparisons into every use, and recompute them for
  # every head and every shifted copy of the scores. It does not duplicate exp.
  visible_txs = jnp.exp(jnp.where(visible_txs, 0.0, MASKED)) > 0
  # Tokens without a visible pair may contain NaN, and 0 * NaN is NaN.
  q_seeing, k_seen = visible_txs.any(1), visible_txs.any(0)
  inner = slice(halo, halo + call.kv_block)
  return _TileInputs(
      q_NxtxH=where_tokens(q_seeing, q_NxtxH, 1),
      k_KxsxH=_turned(where_tokens(k_seen, k_sxKxH, 0)),
      v_Kxsxh=_turned(where_tokens(k_seen[inner], v_sxKxH, 0)),
      visible_txs=visible_txs[:, inner],
      features=(
          where_tokens(q_seeing, q.features, 0),
          where_tokens(k_seen, kv.features, 0),
      ),
      tile=Tile(
          column(q.positions),
          row(kv.positions),
          visible_txs,
          operand_dtype=call.operand_dtype,
      ),
  )


def _turned(x: jax.Array) -> jax.Array:
  """Returns `x` with its first two axes (tokens and heads) swapped."""
  return jnp.swapaxes(x, 0, 1)


def _grouped(x_Nxtxd: jax.Array, num_kv_heads: int) -> jax.Array:
  """Returns [K, N t / K, d]: all rows that use the same key head."""
  return x_Nxtxd.reshape(num_kv_heads, -1, x_Nxtxd.shape[-1])


def _rows_dot(x_Nxtxd: jax.Array, y_Kxdxe: jax.Array, dtype) -> jax.Array:
  """Returns x y, [N, t, e], where each head of x uses its key head's y."""
  out = _dot("krd,kde->kre", _grouped(x_Nxtxd, len(y_Kxdxe)), y_Kxdxe, dtype)
  return out.reshape(*x_Nxtxd.shape[:2], -1)


def _summed_dot(x_Nxtxs, y_Nxtxd, num_kv_heads: int, dtype) -> jax.Array:
  """Returns x^T y summed over the heads that use the same keys, [s, K, d]."""
  x, y = (_grouped(z, num_kv_heads) for z in (x_Nxtxs, y_Nxtxd))
  return _turned(_dot("krs,krd->ksd", x, y, dtype))


def _dot(equation: str, x: jax.Array, y: jax.Array, dtype) -> jax.Array:
  return jnp.einsum(
      equation, x, y, precision="highest", preferred_element_type=dtype
  )


def _raw_scores(call: _Call, inputs: _TileInputs, dtype) -> jax.Array:
  """Returns scale * q k^T, [N, t, s + 2 halo]."""
  k_KxHxs = jnp.swapaxes(inputs.k_KxsxH, 1, 2)
  return call.scale * _rows_dot(inputs.q_NxtxH, k_KxHxs, dtype)


def _modified_scores(call: _Call, tile: Tile, params, features, scores):
  """Returns the scores after the score modifier, [N, t, s]."""
  if call.function is None:
    return scores
  q_features, kv_features = features
  tile = tile.replace(q_features=q_features, kv_features=kv_features)
  return call.function(params, scores, tile)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(call, params, query, key, value, q, kv, key_range):
  """Returns output [T, N, Hv] and log-sum-exp [T, N] for one batch element.

  Args:
    call: static settings.
    params: parameters of the score modifier.
    query: [T, N, H], where T is a multiple of call.q_block.
    key, value: [S + 2 halo, K, H], where S is a multiple of call.kv_block.
    q, kv: positions, ids and features of queries and keys.
    key_range: first and one past the last key block of each query block.
  """
  first, end = key_range
  num_queries, num_heads, _ = query.shape
  dtype = jnp.promote_types(query.dtype, jnp.float32)

  def query_block(i):
    q_txNxH, q_tokens = _block((query, q), i * call.q_block, call.q_block)
    q_NxtxH = _turned(q_txNxH)

    def key_block(j, carry):
      peak_Nxt, total_Nxt, sum_Nxtxh = carry
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
      sum_Nxtxh = shrink_Nxt[..., None] * sum_Nxtxh + _rows_dot(
          weights_Nxtxs.astype(value.dtype), inputs.v_Kxsxh, dtype
      )
      return new_peak_Nxt, total_Nxt, sum_Nxtxh

    rows = (num_heads, call.q_block)
    carry = (
        # Above MASKED, so that masked keys get weight exp(-inf) = 0 even in a
        # row without a visible key.
        jnp.full(rows, MASKED / 10, dtype),
        jnp.zeros(rows, dtype),
        jnp.zeros((*rows, value.shape[-1]), dtype),
    )
    peak_Nxt, total_Nxt, sum_Nxtxh = lax.fori_loop(
        first[i], end[i], key_block, carry
    )
    seeing_Nxt = total_Nxt > 0
    total_Nxt = jnp.where(seeing_Nxt, total_Nxt, 1)
    out_Nxtxh = (sum_Nxtxh / total_Nxt[..., None]).astype(query.dtype)
    lse_Nxt = jnp.where(seeing_Nxt, peak_Nxt + jnp.log(total_Nxt), MASKED)
    return _turned(out_Nxtxh), lse_Nxt.T

  blocks = lax.map(query_block, jnp.arange(num_queries // call.q_block))
  return _unblocked(blocks)


def _unblocked(tree: Any) -> Any:
  """Returns arrays [blocks, block, ...] reshaped to [T, ...]."""
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def _attention_forward(call, params, query, key, value, q, kv, key_range):
  out, lse = _attention(call, params, query, key, value, q, kv, key_range)
  kept = (params, query, key, value, q, kv, key_range, out, lse)
  return (out, lse), kept


def _attention_backward(call, kept, cotangents):
  params, query, key, value, q, kv, (first, end), out, lse = kept
  d_out, d_lse = cotangents
  dtype = lse.dtype
  zeros = lambda tree: jax.tree.map(lambda x: jnp.zeros(x.shape, dtype), tree)

  def query_block(sums, i):
    q_txNxH, q_tokens, out_txNxh, lse_txN, d_out_txNxh, d_lse_txN = _block(
        (query, q, out, lse, d_out, d_lse), i * call.q_block, call.q_block
    )
    # Row sums of the weights times their cotangents, minus the cotangent of the
    # log-sum-exp, whose gradient with respect to a score is the score's weight.
    delta_txN = jnp.sum(
        out_txNxh.astype(dtype) * d_out_txNxh.astype(dtype), axis=-1
    )
    delta_Nxtx1 = (delta_txN - d_lse_txN).T[..., None]
    lse_Nxtx1 = lse_txN.T[..., None]
    q_NxtxH, d_out_Nxtxh = _turned(q_txNxH), _turned(d_out_txNxh)

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
          inputs.visible_txs[None], jnp.exp(scores_Nxtxs - lse_Nxtx1), 0
      )
      v_Kxhxs = jnp.swapaxes(inputs.v_Kxsxh, 1, 2)
      d_weights_Nxtxs = _rows_dot(d_out_Nxtxh, v_Kxhxs, dtype)
      d_scores_Nxtxs = weights_Nxtxs * (d_weights_Nxtxs - delta_Nxtx1)
      d_params_tile, d_features, d_raw_Nxtxs = pull(d_scores_Nxtxs)
      d_raw_Nxtxs = (call.scale * d_raw_Nxtxs).astype(key.dtype)
      d_q += _rows_dot(d_raw_Nxtxs, inputs.k_KxsxH, dtype)
      d_k = _summed_dot(d_raw_Nxtxs, inputs.q_NxtxH, key.shape[1], dtype)
      d_v = _summed_dot(
          weights_Nxtxs.astype(value.dtype), d_out_Nxtxh, key.shape[1], dtype
      )
      start = j * call.kv_block
      sums = (
          jax.tree.map(jnp.add, d_params, d_params_tile),
          _add_block(d_key, d_k, start),
          _add_block(d_value, d_v, start + call.halo),
          _add_block(d_kv_features, d_features[1], start),
      )
      d_q_features = jax.tree.map(jnp.add, d_q_features, d_features[0])
      return sums, d_q, d_q_features

    carry = (sums, zeros(q_NxtxH), zeros(q_tokens.features))
    sums, d_q, d_q_features = lax.fori_loop(first[i], end[i], key_block, carry)
    return sums, (_turned(d_q).astype(query.dtype), d_q_features)

  sums, blocks = lax.scan(
      query_block,
      zeros((params, key, value, kv.features)),
      jnp.arange(query.shape[0] // call.q_block),
  )
  d_params, d_key, d_value, d_kv_features = sums
  d_query, d_q_features = _unblocked(blocks)
  cast = lambda d, x: jax.tree.map(lambda a, b: a.astype(b.dtype), d, x)
  return (
      cast(d_params, params),
      d_query,
      cast(d_key, key),
      cast(d_value, value),
      _Tokens(None, None, cast(d_q_features, q.features)),
      _Tokens(None, None, cast(d_kv_features, kv.features)),
      None,
  )


_attention.defvjp(_attention_forward, _attention_backward)
