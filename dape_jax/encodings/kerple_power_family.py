"""KERPLE's variants with a power of the distance (arXiv 2205.09921).

The power is the bias itself, the exponent of a bias, or the exponent of a
factor that multiplies the scores.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from dape_jax.array_typing import TileScores
from dape_jax.encodings.kerple import (
    EXPONENT,
    Kerple,
    KerpleTile,
    Range,
    power,
)
from dape_jax.encodings.tile import AdditiveBias, Params, Tile


@dataclasses.dataclass(frozen=True)
class KerplePowerTile(KerpleTile, AdditiveBias):
  """B_h(i, j) = -r1_h |i - j|^r2_h."""

  large_bias: ClassVar[bool] = True
  ranges: ClassVar[dict[str, Range]] = {"r1": Range(1.0), "r2": EXPONENT}

  def bias(self, params: Params, tile: Tile, dtype: jnp.dtype):
    distances, r1, r2 = self.values(params, tile, dtype)
    return -r1 * power(distances, r2)


class KerplePower(Kerple):
  """B_h(i, j) = -r1_h (i - j)^r2_h.

  r1 and r2 are learned per head, U[0, 1) and U[0, 2) at init. They are clamped
  on use to at least 0.01, and r2 to at most 2, with a straight-through
  gradient. The paper shares them between layers (`ModelConfig.share_encoding`).
  Keys after the query use the distance |i - j|.

  Source: Chi et al. 2022, section 4 (power), arXiv 2205.09921.
  Extrapolates: yes.

  Attributes:
    num_heads: N.
    two_sided: learns r1_after and r2_after for keys after the query; no effect
      under a causal mask.
  """

  tile: ClassVar[type[KerpleTile]] = KerplePowerTile


@dataclasses.dataclass(frozen=True)
class Kerple2ParaBiasTile(KerpleTile, AdditiveBias):
  """B_h(i, j) = r1_h exp(-r2_h |i - j|^2)."""

  ranges: ClassVar[dict[str, Range]] = {"r1": Range(2.0), "r2": Range(1.0)}

  def bias(self, params: Params, tile: Tile, dtype: jnp.dtype):
    distances, r1, r2 = self.values(params, tile, dtype)
    return r1 * jnp.exp(-r2 * (distances * distances))


class Kerple2ParaBias(Kerple):
  """B_h(i, j) = r1_h exp(-r2_h (i - j)^2).

  r1 and r2 are learned per head and clamped on use to at least 0.01, with a
  straight-through gradient. Neither the paper nor the code gives initial
  values; here they are U[0, 2) and U[0, 1). The paper shares them between
  layers (`ModelConfig.share_encoding`). Keys after the query use the distance
  |i - j|.

  Source: Chi et al. 2022, appendix A.3 (2-para-bias), arXiv 2205.09921.
  Extrapolates: no, according to the authors.

  Attributes:
    num_heads: N.
    two_sided: learns r1_after and r2_after for keys after the query; no effect
      under a causal mask.
  """

  tile: ClassVar[type[KerpleTile]] = Kerple2ParaBiasTile


@dataclasses.dataclass(frozen=True)
class Kerple3ParaBiasTile(KerpleTile, AdditiveBias):
  """B_h(i, j) = r1_h exp(-r2_h |i - j|^r3_h)."""

  ranges: ClassVar[dict[str, Range]] = {
      "r1": Range(2.0),
      "r2": Range(1.0),
      "r3": EXPONENT,
  }

  def bias(self, params: Params, tile: Tile, dtype: jnp.dtype):
    distances, r1, r2, r3 = self.values(params, tile, dtype)
    return r1 * jnp.exp(-r2 * power(distances, r3))


class Kerple3ParaBias(Kerple):
  """B_h(i, j) = r1_h exp(-r2_h (i - j)^r3_h).

  r1, r2 and r3 are learned per head and clamped on use to at least 0.01, r3
  also to at most 2, with a straight-through gradient. Neither the paper nor the
  code gives initial values; here they are U[0, 2), U[0, 1) and U[0, 2). The
  paper shares them between layers (`ModelConfig.share_encoding`). Keys after
  the query use the distance |i - j|.

  Source: Chi et al. 2022, appendix A.3 (3-para-bias), arXiv 2205.09921.
  Extrapolates: no, according to the authors.

  Attributes:
    num_heads: N.
    two_sided: learns separate parameters (r1_after, ...) for keys after the
      query; no effect under a causal mask.
  """

  tile: ClassVar[type[KerpleTile]] = Kerple3ParaBiasTile


@dataclasses.dataclass(frozen=True)
class WeightTile(KerpleTile):
  """A = S W + B, for the variants that multiply the scores."""

  def weight_and_bias(
      self, params: Params, tile: Tile, dtype: jnp.dtype
  ) -> tuple[jax.Array, jax.Array | None]:
    """Returns W [N, t, s], and B [N, t, s] or None."""
    raise NotImplementedError

  def bias(self, params: Params, tile: Tile, dtype: jnp.dtype):
    return self.weight_and_bias(params, tile, dtype)[1]

  def __call__(
      self, params: Params, scores: TileScores, tile: Tile
  ) -> TileScores:
    weight, bias = self.weight_and_bias(params, tile, scores.dtype)
    if len(weight) != len(scores):
      raise ValueError(
          f"encoding has {len(weight)} heads, but scores have {len(scores)}."
      )
    scores = scores * weight
    return scores if bias is None else scores + bias


@dataclasses.dataclass(frozen=True)
class KerpleBiasWhtTile(WeightTile):
  """W_h(i, j) = exp(-r3_h |i - j|^r4_h), B_h(i, j) = -r1_h |i - j|^r2_h."""

  large_bias: ClassVar[bool] = True
  ranges: ClassVar[dict[str, Range]] = {
      "r1": Range(1.0),
      "r2": EXPONENT,
      "r3": Range(1.0),
      "r4": EXPONENT,
  }

  def weight_and_bias(self, params, tile, dtype):
    distances, r1, r2, r3, r4 = self.values(params, tile, dtype)
    weight = jnp.exp(-r3 * power(distances, r4))
    return weight, -r1 * power(distances, r2)


class KerpleBiasWht(Kerple):
  """A = S_h(i, j) exp(-r3_h (i - j)^r4_h) - r1_h (i - j)^r2_h.

  The parameters are learned per head. As in the released code, r1 and r3 are
  U[0, 1) at init, and the exponents r2 and r4 are U[0, 2). They are clamped on
  use to at least 0.01, and exponents to at most 2, with a straight-through
  gradient. The paper shares them between layers (`ModelConfig.share_encoding`).
  Keys after the query use the distance |i - j|. Plots of the bias show the
  second term.

  Source: Chi et al. 2022, section 5.3 (bias+wht), arXiv 2205.09921.
  Extrapolates: yes.

  Attributes:
    num_heads: N.
    two_sided: learns separate parameters (r1_after, ...) for keys after the
      query; no effect under a causal mask.
  """

  tile: ClassVar[type[KerpleTile]] = KerpleBiasWhtTile


@dataclasses.dataclass(frozen=True)
class Kerple1ParaWhtTile(WeightTile):
  """W_h(i, j) = exp(-r1_h |i - j|^2)."""

  ranges: ClassVar[dict[str, Range]] = {"r1": Range(1.0)}

  def weight_and_bias(self, params, tile, dtype):
    distances, r1 = self.values(params, tile, dtype)
    return jnp.exp(-r1 * (distances * distances)), None


class Kerple1ParaWht(Kerple):
  """A = S_h(i, j) exp(-r1_h (i - j)^2).

  r1 is learned per head, U[0, 1) at init like the factor of the released code's
  weight. It is clamped on use to at least 0.01, with a straight-through
  gradient. The paper shares it between layers (`ModelConfig.share_encoding`).
  Keys after the query use the distance |i - j|. There is no bias to plot.

  Source: Chi et al. 2022, appendix A.3 (1-para-wht), arXiv 2205.09921.
  Extrapolates: to a limited extent, according to the authors.

  Attributes:
    num_heads: N.
    two_sided: learns r1_after for keys after the query; no effect under a
      causal mask.
  """

  tile: ClassVar[type[KerpleTile]] = Kerple1ParaWhtTile


@dataclasses.dataclass(frozen=True)
class Kerple2ParaWhtTile(WeightTile):
  """W_h(i, j) = exp(-r1_h |i - j|^r2_h)."""

  ranges: ClassVar[dict[str, Range]] = {"r1": Range(1.0), "r2": EXPONENT}

  def weight_and_bias(self, params, tile, dtype):
    distances, r1, r2 = self.values(params, tile, dtype)
    return jnp.exp(-r1 * power(distances, r2)), None


class Kerple2ParaWht(Kerple):
  """A = S_h(i, j) exp(-r1_h (i - j)^r2_h).

  r1 and r2 are learned per head, U[0, 1) and U[0, 2) at init as in the released
  code. They are clamped on use to at least 0.01, and r2 to at most 2, with a
  straight-through gradient. The paper shares them between layers
  (`ModelConfig.share_encoding`). Keys after the query use the distance |i - j|.
  There is no bias to plot.

  Source: Chi et al. 2022, appendix A.3 (2-para-wht), arXiv 2205.09921.
  Extrapolates: to a limited extent, according to the authors.

  Attributes:
    num_heads: N.
    two_sided: learns r1_after and r2_after for keys after the query; no effect
      under a causal mask.
  """

  tile: ClassVar[type[KerpleTile]] = Kerple2ParaWhtTile
