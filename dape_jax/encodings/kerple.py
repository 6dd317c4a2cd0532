"""KERPLE: kernelized relative position encodings (Chi et al. 2022).

arXiv 2205.09921. The paper writes the bias inside 1/sqrt(d); here, as in all
released code, it is added to the scaled scores, so r1 is the paper's / sqrt(d).
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from dape_jax.array_typing import PerHead, TileDistances, TileScores
from dape_jax.encodings.base import (
    AdditiveBias,
    Params,
    PositionalEncoding,
    ScoreMod,
    Tile,
)
from dape_jax.encodings.pairwise import per_head

MINIMUM = 0.01


def projected(x: jax.Array, minimum: float) -> jax.Array:
  """Returns max(x, minimum) with the gradient of x.

  The released code projects the parameter's data in place, so the gradient
  passes straight through the clamp.
  """
  return jax.lax.stop_gradient(jnp.maximum(x, minimum)) + (
      x - jax.lax.stop_gradient(x)
  )


def kerple_log_bias(
    r1: PerHead, r2: PerHead, distances: TileDistances
) -> TileScores:
  """Returns B_h(i, j) = -r1_h log(1 + r2_h |i - j|), [N, t, s].

  Equation (3) of arXiv 2205.09921, "logarithmic variant"; r1 and r2 [N] are
  used as max(., 0.01), and `distances` [t, s] is exact (int32).
  """
  r1 = per_head(projected(r1, MINIMUM))
  r2 = per_head(projected(r2, MINIMUM))
  # Not log1p: the sum's rounding is far below the bias's use, and costs less.
  return -r1 * jnp.log(1 + r2 * distances[None].astype(r2.dtype))


@dataclasses.dataclass(frozen=True)
class KerpleLogTile(AdditiveBias):
  in_kernel: ClassVar[bool] = True

  def bias(self, params: Params, tile: Tile, dtype: jnp.dtype):
    r1, r2 = (params[name].astype(dtype) for name in ("r1", "r2"))
    return kerple_log_bias(r1, r2, tile.distances())


class KerpleLog(PositionalEncoding):
  """B_h(i, j) = -r1_h log(1 + r2_h (i - j)) (arXiv 2205.09921).

  Parameters r1 ~ U[0, 2) and r2 ~ U[0, 1), one each per head, not below 0.01
  on use. DAPE's code learns one set per layer, KERPLE's one for all layers
  (`ModelConfig.share_encoding`).
  """

  num_heads: int

  def setup(self):
    shape = (self.num_heads,)
    self.r1 = self.param("r1", jax.nn.initializers.uniform(2.0), shape)
    self.r2 = self.param("r2", jax.nn.initializers.uniform(1.0), shape)

  def score_mod(self) -> ScoreMod:
    return ScoreMod({"r1": self.r1, "r2": self.r2}, KerpleLogTile())
