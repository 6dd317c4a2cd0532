"""CoPE: contextual position encoding (Golovneva et al. 2024)."""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from dape_jax.array_typing import TileMask, TileScores
from dape_jax.encodings.base import PositionalEncoding
from dape_jax.encodings.tile import (
    Params,
    ScoreMod,
    Tile,
    TileFunction,
)
from dape_jax.encodings.token_features import given, without_padding
from dape_jax.errors import ConfigError


def contextual_positions(
    scores: TileScores, visible: TileMask, highest: int
) -> TileScores:
  """Returns p_ij = min(sum_{k >= j} sigmoid(S_ik), highest), [N, t, s].

  The sum is over the keys visible to query i, from slot j on. `scores` must be
  whole rows.
  """
  # The inner where keeps NaN of invisible keys out of the gradient.
  gates = jax.nn.sigmoid(jnp.where(visible[None], scores, 0))
  gates = jnp.where(visible[None], gates, 0)
  positions = jax.lax.cumsum(gates, axis=2, reverse=True)
  return jnp.minimum(positions, highest)


def interpolated(z_NxtxM: jax.Array, positions: TileScores) -> TileScores:
  """Returns z_i at fractional positions, linear between integers, [N, t, s].

  Args:
    z_NxtxM: values at positions 0..M - 1.
    positions: 0 to M - 1. Their gradient is the slope, and 0 at an integer.
  """

  def at(integers):
    return jnp.take_along_axis(
        z_NxtxM, integers.astype(jnp.int32), axis=2, mode="clip"
    )

  floor, ceil = jnp.floor(positions), jnp.ceil(positions)
  weight = positions - floor
  return at(ceil) * weight + at(floor) * (1 - weight)


@dataclasses.dataclass(frozen=True)
class CopeTile(TileFunction):
  """A = S + z_i at p_ij; z is the queries' feature, [t, N, n_max]."""

  scope: ClassVar[str] = "row"

  def bias(self, params: Params, tile: Tile, dtype: jnp.dtype) -> None:
    del params, tile, dtype  # everything added depends on the scores

  def __call__(
      self, params: Params, scores: TileScores, tile: Tile
  ) -> TileScores:
    del params
    z_txNxM = given(tile.q_features, "CoPE").astype(scores.dtype)
    positions = contextual_positions(
        scores, tile.visible_mask(), highest=z_txNxM.shape[-1] - 1
    )
    return scores + interpolated(jnp.swapaxes(z_txNxM, 0, 1), positions)


class Cope(PositionalEncoding):
  """A_h(i, j) = S_h(i, j) + (q_i . e)(p_ij), p_ij = sum_{k=j..i} g_ik.

  The position of a key is the sum of the query's gates
  g_ik = sigmoid(S_h(i, k)), at most n_max - 1. Between integers, the products
  of the query with two embeddings are interpolated linearly. q is neither
  scaled nor rotated; the table e [H, n_max] is 0 at init and shared by the
  heads. The gates use the scaled scores, as in DAPE's released code (the paper
  writes q . k). Computed in float32 regardless of q's dtype.

  p needs whole rows of scores, so the memory of a tile grows with the number of
  keys, and there is no static bias. The keys of a document must be in order of
  position in the row or the cache. Invisible keys (other documents, padding,
  outside a window) do not count. Without a causal mask, p sums over all visible
  keys from j on, including those after the query.

  Source: Golovneva et al. 2024, section 4, arXiv 2405.18719.
  Extrapolates: yes.

  Attributes:
    num_heads: N.
    max_position: n_max, number of positions with an embedding.
  """

  num_heads: int
  max_position: int = 64

  def __post_init__(self):
    if self.max_position < 1:
      raise ConfigError(f"max_position={self.max_position}: must be 1 or more.")
    super().__post_init__()

  @nn.compact
  def features(self, x, query, key, *, segment_ids=None, previous=None):
    del x, key, previous
    query = without_padding(query, segment_ids)
    shape = (query.shape[-1], self.max_position)
    table = self.param("table", nn.initializers.zeros, shape)
    table = table.astype(query.dtype)
    return jnp.matmul(query, table, precision="highest"), None

  def score_mod(self) -> ScoreMod:
    return ScoreMod({}, CopeTile())
