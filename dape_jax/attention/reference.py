"""Attention with the whole score matrix in memory: the one to compare with."""

import functools

import jax
import jax.numpy as jnp

from dape_jax.attention.mask import visible_mask
from dape_jax.encodings.base import ScoreMod, Tile

# Finite, so that a row in which every score is masked has no inf - inf.
MASKED = -1e30


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

  Memory grows with T times S: scores [B, N, T, S] in float32 (or wider).
  """
  batch, num_queries, num_heads, head_dim = query.shape
  num_kv_heads = key.shape[2]
  groups = num_heads // num_kv_heads
  dtype = jnp.promote_types(query.dtype, jnp.float32)

  visible_BxTxS = visible_mask(
      q_positions,
      kv_positions,
      q_segment_ids,
      kv_segment_ids,
      causal=causal,
      window=window,
  )
  # What no query sees may hold anything, NaN included: 0 * NaN is NaN.
  seen_BxS = jnp.any(visible_BxTxS, axis=1)[:, :, None, None]
  key = jnp.where(seen_BxS, key, 0)
  value = jnp.where(seen_BxS, value, 0)

  q_BxTxKxGxH = query.reshape(
      batch, num_queries, num_kv_heads, groups, head_dim
  )
  scores_BxKxGxTxS = jnp.einsum(
      "btkgh,bskh->bkgts",
      q_BxTxKxGxH,
      key,
      precision="highest",
      preferred_element_type=dtype,
  )
  scores_BxNxTxS = scale * scores_BxKxGxTxS.reshape(
      batch, num_heads, num_queries, -1
  )
  if score_mod is not None:
    scores_BxNxTxS = _modified(
        score_mod,
        scores_BxNxTxS,
        visible_BxTxS,
        q_positions,
        kv_positions,
        q_features,
        kv_features,
    )

  visible_BxNxTxS = visible_BxTxS[:, None]
  scores_BxNxTxS = jnp.where(visible_BxNxTxS, scores_BxNxTxS, MASKED)
  peak = jax.lax.stop_gradient(scores_BxNxTxS.max(axis=-1, keepdims=True))
  weights = jnp.where(visible_BxNxTxS, jnp.exp(scores_BxNxTxS - peak), 0)
  total = weights.sum(axis=-1, keepdims=True)
  weights = weights / jnp.where(total > 0, total, 1)
  out_BxTxKxGxH = jnp.einsum(
      "bkgts,bskh->btkgh",
      weights.reshape(batch, num_kv_heads, groups, num_queries, -1).astype(
          value.dtype
      ),
      value,
      precision="highest",
      preferred_element_type=dtype,
  )
  return out_BxTxKxGxH.reshape(batch, num_queries, num_heads, -1).astype(
      query.dtype
  )


def _modified(
    score_mod: ScoreMod,
    scores_BxNxTxS: jax.Array,
    visible_BxTxS: jax.Array,
    q_positions: jax.Array,
    kv_positions: jax.Array,
    q_features,
    kv_features,
) -> jax.Array:
  """Returns the scores of every batch element through the tile function."""
  halo = score_mod.halo
  if halo:
    pad = functools.partial(_pad_keys, halo=halo)
    scores_BxNxTxS = pad(scores_BxNxTxS)
    visible_BxTxS = pad(visible_BxTxS)
    kv_positions = pad(kv_positions, value=-1)
    kv_features = jax.tree.map(
        lambda x: jnp.moveaxis(pad(jnp.moveaxis(x, 1, -1)), -1, 1),
        kv_features,
    )

  # An unbatched axis stays unbatched: positions that the batch shares give one
  # bias for all of it.
  def axis(positions):
    return 0 if positions.ndim == 2 else None

  def squeezed(mask_BxTxS):
    return (mask_BxTxS[0], None) if len(mask_BxTxS) == 1 else (mask_BxTxS, 0)

  visible, visible_axis = squeezed(visible_BxTxS)

  def one(scores_NxTxS, visible, q_positions, kv_positions, q_feats, kv_feats):
    tile = Tile(q_positions, kv_positions, visible, q_feats, kv_feats)
    return score_mod.apply(score_mod.params, scores_NxTxS, tile)

  in_axes = (0, visible_axis, axis(q_positions), axis(kv_positions), 0, 0)
  return jax.vmap(one, in_axes=in_axes)(
      scores_BxNxTxS,
      visible,
      q_positions,
      kv_positions,
      q_features,
      kv_features,
  )


def _pad_keys(x: jax.Array, halo: int, value=0) -> jax.Array:
  widths = [(0, 0)] * (x.ndim - 1) + [(halo, halo)]
  return jnp.pad(x, widths, constant_values=value)
