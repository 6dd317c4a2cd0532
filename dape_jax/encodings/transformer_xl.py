"""Transformer-XL's relative positions (Dai et al. 2019, arXiv 1901.02860)."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from dape_jax.array_typing import TilePositions, TileScores
from dape_jax.encodings.base import PositionalEncoding
from dape_jax.encodings.phases import phases, sinusoid_frequencies
from dape_jax.encodings.tile import (
    AdditiveBias,
    Params,
    ScoreMod,
    Tile,
)
from dape_jax.encodings.token_features import given, without_padding
from dape_jax.errors import ConfigError


def sinusoids_of_distances(
    z_NxtxD: jax.Array, q_positions: TilePositions, kv_positions: TilePositions
) -> TileScores:
  """Returns z_i . R_{i-j}, R_r = [sin(r w), cos(r w)], [N, t, s].

  By the addition theorem, the result is one matrix product of z rotated by i
  and the sinusoids of j. R_{i-j} is never materialized per pair.

  Args:
    z_NxtxD: coefficients, D even; w_k = 10000^(-2k / D).
    q_positions, kv_positions: int32 [t] and [s].
  """
  num_heads, num_queries, width = z_NxtxD.shape
  frequencies = sinusoid_frequencies(width)
  i, j = (
      phases(positions, frequencies, z_NxtxD.dtype)
      for positions in (q_positions, kv_positions)
  )
  sin_i, cos_i = jnp.sin(i)[None], jnp.cos(i)[None]
  of_sin, of_cos = jnp.split(z_NxtxD, 2, axis=-1)
  turned = jnp.concatenate(
      [of_cos * sin_i - of_sin * cos_i, of_sin * sin_i + of_cos * cos_i],
      axis=-1,
  )
  sinusoids_sxD = jnp.concatenate([jnp.sin(j), jnp.cos(j)], axis=-1)
  out = jnp.matmul(
      turned.reshape(-1, width), sinusoids_sxD.T, precision="highest"
  )
  return out.reshape(num_heads, num_queries, -1)


@dataclasses.dataclass(frozen=True)
class TransformerXLTile(AdditiveBias):
  """B_h(i, j) = (u_h . k_j) / sqrt(H) + z_ih . R_{i-j}.

  The first term is the keys' feature [s, N], z the queries' [t, N, D_R].
  """

  def bias(self, params: Params, tile: Tile, dtype: jnp.dtype) -> TileScores:
    del params
    z_txNxD = given(tile.q_features, "Transformer-XL").astype(dtype)
    of_keys_sxN = given(tile.kv_features, "Transformer-XL").astype(dtype)
    of_distances = sinusoids_of_distances(
        jnp.swapaxes(z_txNxD, 0, 1),
        tile.q_positions[:, 0],
        tile.kv_positions[0],
    )
    return of_distances + of_keys_sxN.T[:, None, :]


class TransformerXL(PositionalEncoding):
  """B_h(i, j) = (u_h . k_j + (q_i + v_h) . (W_R R_{i-j})_h) / sqrt(H).

  Added to the scores S = q_i . k_j / sqrt(H), which assumes attention's default
  scale, this gives
    ((q_i + u) . k_j + (q_i + v) . W_R R_{i-j}) / sqrt(H).
  R_r is [sin(r w), cos(r w)] with w_k = 10000^(-2k / D_R). u, v [N, H] and
  W_R [D_R, N, H] are N(0, 0.02^2) at init. Parameters and computation are
  float32.

  The addition theorem splits the distance into a query part,
  z_i = (q_i + v) W_R / sqrt(H) with N D_R numbers per query, and a key part,
  the sinusoids of j, so memory is linear in the length. Departures: layers
  share u, v and W_R only if they share the whole encoding, and there is no
  segment recurrence (use a cache). Keys after the query use R of the negative
  distance, as in the formula.

  Source: Dai et al. 2019, section 3.3, arXiv 1901.02860.
  Extrapolates: yes, to a few times the training length.

  Attributes:
    num_heads: N.
    sinusoid_width: D_R, even; 0 for the width of the model.
  """

  num_heads: int
  sinusoid_width: int = 0

  def __post_init__(self):
    if self.sinusoid_width < 0 or self.sinusoid_width % 2:
      raise ConfigError(
          f"sinusoid_width={self.sinusoid_width}: must be even, a sine and a"
          " cosine for each frequency, or 0 for the width of the model."
      )
    super().__post_init__()

  @property
  def key_features(self) -> int:
    return self.num_heads

  @nn.compact
  def features(self, x, query, key, *, segment_ids=None, previous=None):
    del previous
    width = self.sinusoid_width or x.shape[-1]
    if width % 2:
      raise ConfigError(
          f"sinusoid_width=0: uses the width of the model, and {width} is odd;"
          " choose an even sinusoid_width."
      )
    q_BxTxNxH = without_padding(query, segment_ids)
    k_BxTxKxH = without_padding(key, segment_ids)
    dtype, head_dim = q_BxTxNxH.dtype, query.shape[-1]
    init = nn.initializers.normal(0.02)
    per_head = (self.num_heads, head_dim)
    u_NxH = self.param("u", init, per_head).astype(dtype)
    v_NxH = self.param("v", init, per_head).astype(dtype)
    kernel = self.param("kernel", init, (width, *per_head)).astype(dtype)

    scale = head_dim**-0.5
    z_BxTxNxD = scale * jnp.einsum(
        "BTNH,DNH->BTND",
        q_BxTxNxH + v_NxH[None, None],
        kernel,
        precision="highest",
    )
    num_kv_heads = key.shape[2]
    of_keys_BxTxKxG = scale * jnp.einsum(
        "BTKH,KGH->BTKG",
        k_BxTxKxH,
        u_NxH.reshape(num_kv_heads, -1, head_dim),
        precision="highest",
    )
    return z_BxTxNxD, of_keys_BxTxKxG.reshape(*key.shape[:2], -1)

  def score_mod(self) -> ScoreMod:
    return ScoreMod({}, TransformerXLTile())
