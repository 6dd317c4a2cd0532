"""Attention with the whole score matrix in memory: the one to compare with."""

import functools

import jax
import jax.numpy as jnp

from dape_jax.attention.mask import visible_mask
from dape_jax.encodings.base import ScoreMod, Tile

# Finite, so that a row in which every score is masked has no inf - inf.
MASKED = -1e30


@functools.partial(jax.jit, static_argnames=("causal", "window"))
def reference_attention(
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
) -> jax.Array:
  """Returns attention of `api.attention`'s arguments, [B, T, N, Hv].

  Memory grows with T times S: scores [N, T, S] and whatever the score modifier
  makes of them are materialised in float32 (or wider). The backward pass computes
  them anew, and on one device the batch is walked an element at a time, so that
  they stand in memory (and on a CPU mostly in its cache) only once.
  """
  # Positions and masks that the batch shares stay unbatched.
  batched = {
      "query": query,
      "key": key,
      "value": value,
      "q_features": q_features,
      "kv_features": kv_features,
  }
  shared = {}
  for name, array in (
      ("q_positions", q_positions),
      ("kv_positions", kv_positions),
  ):
    (batched if array.ndim == 2 else shared)[name] = array
  if q_segment_ids is not None:
    batched |= {
        "q_segment_ids": q_segment_ids,
        "kv_segment_ids": kv_segment_ids,
    }

  def one(element):
    return _attention_of_element(
        score_mod=score_mod,
        causal=causal,
        window=window,
        scale=scale,
        **element,
        **shared,
    )

  if jax.sharding.get_abstract_mesh().size > 1:
    # Walking an axis that lies on several devices would gather it on each.
    return jax.vmap(jax.checkpoint(one))(batched)
  return jax.lax.map(jax.checkpoint(one, prevent_cse=False), batched)


def _attention_of_element(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    q_positions: jax.Array,
    kv_positions: jax.Array,
    q_features,
    kv_features,
    score_mod: ScoreMod | None,
    causal: bool,
    window: int | None,
    scale: float,
    q_segment_ids: jax.Array | None = None,
    kv_segment_ids: jax.Array | None = None,
) -> jax.Array:
  """Returns attention of one batch element, [T, N, Hv]."""
  num_queries, num_heads, head_dim = query.shape
  num_keys, num_kv_heads = key.shape[:2]
  groups = num_heads // num_kv_heads
  dtype = jnp.promote_types(query.dtype, jnp.float32)

  visible_TxS = visible_mask(
      q_positions,
      kv_positions,
      q_segment_ids,
      kv_segment_ids,
      causal=causal,
      window=window,
  )
  # What takes no part may hold anything, NaN included: 0 * NaN is NaN.
  query = jnp.where(jnp.any(visible_TxS, axis=1)[:, None, None], query, 0)
  seen_S = jnp.any(visible_TxS, axis=0)[:, None, None]
  key = jnp.where(seen_S, key, 0)
  value = jnp.where(seen_S, value, 0)

  q_TxKxGxH = query.reshape(num_queries, num_kv_heads, groups, head_dim)
  scores_KxGxTxS = jnp.einsum(
      "tkgh,skh->kgts",
      q_TxKxGxH,
      key,
      precision="highest",
      preferred_element_type=dtype,
  )
  scores_NxTxS = scale * scores_KxGxTxS.reshape(
      num_heads, num_queries, num_keys
  )
  if score_mod is not None:
    halo = score_mod.halo
    tile = Tile(
        q_positions,
        _pad_last(kv_positions, halo, value=-1),
        _pad_last(visible_TxS, halo),
        q_features,
        jax.tree.map(lambda x: _pad_first(x, halo), kv_features),
    )
    scores_NxTxS = score_mod.apply(
        score_mod.params, _pad_last(scores_NxTxS, halo), tile
    )

  scores_NxTxS = jnp.where(visible_TxS[None], scores_NxTxS, MASKED)
  peak = jax.lax.stop_gradient(scores_NxTxS.max(axis=-1, keepdims=True))
  weights = jnp.where(visible_TxS[None], jnp.exp(scores_NxTxS - peak), 0)
  total = weights.sum(axis=-1, keepdims=True)
  weights = weights / jnp.where(total > 0, total, 1)
  out_TxKxGxH = jnp.einsum(
      "kgts,skh->tkgh",
      weights.reshape(num_kv_heads, groups, num_queries, num_keys).astype(
          value.dtype
      ),
      value,
      precision="highest",
      preferred_element_type=dtype,
  )
  return out_TxKxGxH.reshape(num_queries, num_heads, -1).astype(query.dtype)


def _pad_last(x: jax.Array, halo: int, value=0) -> jax.Array:
  widths = [(0, 0)] * (x.ndim - 1) + [(halo, halo)]
  return jnp.pad(x, widths, constant_values=value)


def _pad_first(x: jax.Array, halo: int) -> jax.Array:
  return jnp.pad(x, [(halo, halo)] + [(0, 0)] * (x.ndim - 1))
