"""KERPLE: kernelized relative position encodings (Chi et al. 2022).

arXiv 2205.09921. The paper adds the bias before dividing by sqrt(d). Here, as
in all released code, it is added to the scaled scores, so r1 is the paper's r1
divided by sqrt(d). This module has the logarithmic variants and the code common
to all; `kerple_power_family` has the other variants.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from dape_jax.array_typing import PerHead, TileDistances, TileScores
from dape_jax.encodings.base import PositionalEncoding
from dape_jax.encodings.pairwise import per_head
from dape_jax.encodings.tile import (
    AdditiveBias,
    Params,
    ScoreMod,
    Tile,
    TileFunction,
)

MINIMUM = 0.01
AFTER = "_after"


@dataclasses.dataclass(frozen=True)
class Range:
  """Range of a parameter: U[0, initial) at init, [0.01, maximum] on use."""

  initial: float
  maximum: float | None = None


# A power of the distance gives a positive definite kernel up to the square.
EXPONENT = Range(initial=2.0, maximum=2.0)


def projected(
    x: jax.Array, minimum: float, maximum: float | None = None
) -> jax.Array:
  """Returns x clamped to [minimum, maximum], with the gradient of x.

  The released code projects the parameter's data in place, so the gradient
  passes straight through the clamp.
  """
  clamped = jnp.maximum(x, minimum)
  if maximum is not None:
    clamped = jnp.minimum(clamped, maximum)
  return jax.lax.stop_gradient(clamped) + (x - jax.lax.stop_gradient(x))


def power(distances: jax.Array, exponents: jax.Array) -> jax.Array:
  """Returns distances^exponents for distances 0, 1, 2, ..., with 0^p = 0.

  Computes one logarithm for all heads. Its argument is never 0, so the gradient
  with respect to the exponent is 0 at distance 0 instead of 0 times infinity.
  """
  logs = jnp.log(jnp.maximum(distances, 1))
  return jnp.where(distances > 0, jnp.exp(exponents * logs), 0)


def _log_bias(scales, factors, lengths):
  # Cheaper than log1p; the rounding of the sum is negligible here.
  return -scales * jnp.log(1 + factors * lengths)


def kerple_log_bias(
    r1: PerHead, r2: PerHead, distances: TileDistances
) -> TileScores:
  """Returns B_h(i, j) = -r1_h log(1 + r2_h |i - j|), [N, t, s].

  The logarithmic variant, arXiv 2205.09921, section 4; r1 and r2 [N] are used
  as max(., 0.01), and `distances` [t, s] is exact (int32).
  """
  r1, r2 = (per_head(projected(r, MINIMUM)) for r in (r1, r2))
  return _log_bias(r1, r2, distances[None].astype(r2.dtype))


@dataclasses.dataclass(frozen=True)
class KerpleTile(TileFunction):
  """Base class of the variants' tile functions, with parameters per head.

  Class attributes:
    ranges: Range of each parameter by name, in the order of `values`.
  """

  two_sided: bool = False

  in_kernel: ClassVar[bool] = True
  ranges: ClassVar[dict[str, Range]] = {}

  @classmethod
  def names(cls, two_sided: bool) -> list[str]:
    """Returns all parameter names, those with suffix last."""
    suffixes = ("", AFTER) if two_sided else ("",)
    return [name + suffix for suffix in suffixes for name in cls.ranges]

  def values(
      self, params: Params, tile: Tile, dtype: jnp.dtype
  ) -> list[jax.Array]:
    """Returns |i - j| [1, t, s] and the parameters, broadcastable to it."""

    def in_range(name, suffix):
      x = params[name + suffix].astype(dtype)
      return per_head(projected(x, MINIMUM, self.ranges[name].maximum))

    values = [in_range(name, "") for name in self.ranges]
    if self.two_sided:
      after = (tile.kv_positions > tile.q_positions)[None]
      values = [
          jnp.where(after, in_range(name, AFTER), value)
          for name, value in zip(self.ranges, values)
      ]
    return [tile.distances()[None].astype(dtype), *values]


class Kerple(PositionalEncoding):
  """Base class of the variants; holds the parameters of the tile function.

  Attributes:
    num_heads: N.
    two_sided: learns separate parameters for keys after the query.
  """

  num_heads: int
  two_sided: bool = False

  tile: ClassVar[type[KerpleTile]]

  def setup(self):
    ranges = self.tile.ranges
    # The unsuffixed ones first, so that two_sided keeps their initial values.
    self.values = {
        name: self.param(
            name,
            jax.nn.initializers.uniform(
                ranges[name.removesuffix(AFTER)].initial
            ),
            (self.num_heads,),
        )
        for name in self.tile.names(self.two_sided)
    }

  def score_mod(self) -> ScoreMod:
    return ScoreMod(dict(self.values), self.tile(self.two_sided))


@dataclasses.dataclass(frozen=True)
class KerpleLogTile(KerpleTile, AdditiveBias):
  """B_h(i, j) = -r1_h log(1 + r2_h |i - j|)."""

  ranges: ClassVar[dict[str, Range]] = {"r1": Range(2.0), "r2": Range(1.0)}

  def bias(self, params: Params, tile: Tile, dtype: jnp.dtype):
    distances, r1, r2 = self.values(params, tile, dtype)
    return _log_bias(r1, r2, distances)


class KerpleLog(Kerple):
  """B_h(i, j) = -r1_h log(1 + r2_h (i - j)).

  r1 and r2 are learned per head, U[0, 2) and U[0, 1) at init. They are clamped
  on use to at least 0.01, with a straight-through gradient. DAPE's code learns
  one set per layer, KERPLE's one for all layers (`ModelConfig.share_encoding`).
  Keys after the query use the distance |i - j|.

  Source: Chi et al. 2022, section 4 (logarithmic), arXiv 2205.09921.
  Extrapolates: yes.

  Attributes:
    num_heads: N.
    two_sided: learns r1_after and r2_after for keys after the query; no effect
      under a causal mask.
  """

  tile: ClassVar[type[KerpleTile]] = KerpleLogTile


@dataclasses.dataclass(frozen=True)
class Kerple3ParaLogTile(KerpleTile, AdditiveBias):
  """B_h(i, j) = -r1_h log(1 + r2_h |i - j|^r3_h)."""

  ranges: ClassVar[dict[str, Range]] = {
      "r1": Range(2.0),
      "r2": Range(1.0),
      "r3": EXPONENT,
  }

  def bias(self, params: Params, tile: Tile, dtype: jnp.dtype):
    distances, r1, r2, r3 = self.values(params, tile, dtype)
    return _log_bias(r1, r2, power(distances, r3))


class Kerple3ParaLog(Kerple):
  """B_h(i, j) = -r1_h log(1 + r2_h (i - j)^r3_h).

  r1, r2 and r3 are learned per head and clamped on use to at least 0.01, r3
  also to at most 2, with a straight-through gradient. Neither the paper nor the
  code gives initial values; here they are U[0, 2), U[0, 1) and U[0, 2). The
  paper shares them between layers (`ModelConfig.share_encoding`). Keys after
  the query use the distance |i - j|.

  Source: Chi et al. 2022, section 5.3 (3-para-log), arXiv 2205.09921.
  Extrapolates: yes.

  Attributes:
    num_heads: N.
    two_sided: learns separate parameters (r1_after, ...) for keys after the
      query; no effect under a causal mask.
  """

  tile: ClassVar[type[KerpleTile]] = Kerple3ParaLogTile
