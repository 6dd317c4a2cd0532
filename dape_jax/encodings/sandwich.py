"""Sandwich: the inner product of sinusoidal embeddings as a bias.

Chi et al. 2023, arXiv 2212.10356.
"""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from dape_jax.array_typing import TileDistances
from dape_jax.encodings.base import PositionalEncoding
from dape_jax.encodings.tile import (
    AdditiveBias,
    Params,
    ScoreMod,
    Tile,
)
from dape_jax.errors import ConfigError


def _cosine_coefficients() -> list[float]:
  """Returns c_0, ..., c_6 of (cos(pi x) - 1) / x^2 as a polynomial in x^2.

  For |x| <= 1; off by less than 1e-9.
  """
  polynomial = np.polynomial.Chebyshev.interpolate(
      lambda y: -0.5 * (np.pi * np.sinc(np.sqrt(y) / 2)) ** 2, 6, [0, 1]
  )
  return polynomial.convert(kind=np.polynomial.Polynomial).coef.tolist()


COSINE = _cosine_coefficients()


def sandwich_frequencies(dimension: int) -> np.ndarray:
  """Returns 10000^(-2k / D) for k = 1..D/2, float64 radians per token."""
  return 10000.0 ** (-2 * np.arange(1, dimension // 2 + 1) / dimension)


def sandwich_sum(
    distances: TileDistances, dimension: int, dtype: jnp.dtype
) -> jax.Array:
  """Returns the sum of cos(r w_k) - 1 over the D/2 frequencies w_k, [t, s].

  In float32, phases are computed in integers, in units of 2^-32 turns, as in
  `phases`, but one frequency at a time and without constant arrays. Each is off
  by less than 8e-10 radians times the distance. Phases are within half a turn
  of 0, where a polynomial replaces the cosine at a fraction of its cost.
  """
  total = 0
  for frequency in sandwich_frequencies(dimension).tolist():
    if dtype == jnp.float64:
      total = total + (jnp.cos(distances.astype(dtype) * frequency) - 1)
      continue
    # All frequencies are below 1, so steps are below 2^31; the product wraps.
    step = round(frequency * 2**31 / math.pi)
    x = (distances * step).astype(dtype) * 2.0**-31
    square = x * x
    value = COSINE[-1]
    for coefficient in COSINE[-2::-1]:
      value = coefficient + square * value
    total = total + square * value
  return total


@dataclasses.dataclass(frozen=True)
class SandwichTile(AdditiveBias):
  """B_h(i, j) = N / (8 (h + 1)) times `sandwich_sum` of |i - j|."""

  num_heads: int
  dimension: int = 128

  in_kernel: ClassVar[bool] = True
  large_bias: ClassVar[bool] = True

  def bias(self, params: Params, tile: Tile, dtype: jnp.dtype):
    del params
    total = sandwich_sum(tile.distances(), self.dimension, dtype)
    ratios = [self.num_heads / (8 * (h + 1)) for h in range(self.num_heads)]
    return jnp.stack([ratio * total for ratio in ratios])


class Sandwich(PositionalEncoding):
  """B_h(i, j) = (sum_k cos((i - j) 10000^(-2k/D)) - D/2) / (8 (h + 1) / N).

  k = 1..D/2 and h = 0..N-1; no parameters. Subtracting D/2 makes the bias 0 at
  distance 0. D is not the model's width; it sets how fast the bias falls. The
  bias is symmetric in i and j, so keys after the query are treated like keys
  before it.

  Source: Chi et al. 2023 (ACL), the Sandwich bias, arXiv 2212.10356.
  Extrapolates: yes.

  Attributes:
    num_heads: N.
    dimension: D, even.
  """

  num_heads: int
  dimension: int = 128

  def __post_init__(self):
    if self.dimension < 2 or self.dimension % 2:
      raise ConfigError(
          f"dimension={self.dimension}: must be even and 2 or more."
      )
    super().__post_init__()

  def score_mod(self) -> ScoreMod:
    return ScoreMod({}, SandwichTile(self.num_heads, self.dimension))
