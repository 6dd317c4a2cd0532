"""Reference attention, which materializes the score matrix."""

import functools

import jax
import jax.numpy as jnp

from dape_jax.attention.mask import (
    MASKED,
    column,
    row,
    visible_mask,
    where_tokens,
)
from dape_jax.attention.sharded import map_batch
from dape_jax.encodings.tile import ScoreMod


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
    sink: jax.Array | None,
    scale: float,
) -> jax.Array:
  """Returns attention for `api.attention`'s arguments, [B, T, N, Hv].

  Memory is proportional to T * S: scores [N, T, S] and the score modifier's
  intermediate results are materialized in float32 or wider. The backward pass
  recomputes them. On one device the batch is processed one element at a time,
  so only one element's scores are in memory (on a CPU, mostly in its cache).
  """
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

  @functools.partial(jax.checkpoint, prevent_cse=False)
  def one(element):
    return _attention_of_element(
        score_mod=score_mod,
        causal=causal,
        window=window,
        sink=sink,
        scale=scale,
        **element,
    )

  return map_batch(
      lambda batched, shared: jax.vmap(lambda x: one(x | shared))(batched),
      arguments,
  )


def _attention_of_element(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    q_positions: jax.Array,
    kv_positions: jax.Array,
    q_segment_ids: jax.Array | None,
    kv_segment_ids: jax.Array | None,
    q_features,
    kv_features,
    score_mod: ScoreMod | None,
    causal: bool,
    window: int | None,
    sink: jax.Array | None,
    scale: float,
) -> jax.Array:
  """Returns attention for one batch element, [T, N, Hv]."""
  num_queries, num_heads, head_dim = query.shape
  num_keys, num_kv_heads = key.shape[:2]
  groups = num_heads // num_kv_heads
  dtype = jnp.promote_types(query.dtype, jnp.float32)

  visible_TxS = visible_mask(
      column(q_positions),
      row(kv_positions),
      column(q_segment_ids),
      row(kv_segment_ids),
      causal=causal,
      window=window,
  )
  # Tokens without a visible pair may contain NaN, and 0 * NaN is NaN.
  q_seeing, k_seen = visible_TxS.any(1), visible_TxS.any(0)
  query, q_features = where_tokens(q_seeing, (query, q_features), 0)
  key, value, kv_features = where_tokens(k_seen, (key, value, kv_features), 0)

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
    scores_NxTxS = score_mod(
        scores_NxTxS,
        q_positions,
        kv_positions,
        visible=visible_TxS,
        q_features=q_features,
        kv_features=kv_features,
    )

  scores_NxTxS = jnp.where(visible_TxS[None], scores_NxTxS, MASKED)
  peak = scores_NxTxS.max(axis=-1, keepdims=True)
  if sink is not None:
    sink = sink.astype(dtype)[:, None, None]
    peak = jnp.maximum(peak, sink)
  peak = jax.lax.stop_gradient(peak)
  weights = jnp.where(visible_TxS[None], jnp.exp(scores_NxTxS - peak), 0)
  total = weights.sum(axis=-1, keepdims=True)
  if sink is not None:
    total = total + jnp.exp(sink - peak)
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
