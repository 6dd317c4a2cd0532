"""FIRE: functional interpolation for relative positions (Li et al. 2024).

arXiv 2310.04418.
"""

import dataclasses
import itertools
from typing import ClassVar

import jax
import jax.numpy as jnp

from dape_jax.array_typing import TileScores
from dape_jax.encodings.base import (
    PositionalEncoding,
    symmetric_uniform,
)
from dape_jax.encodings.pairwise import leaky_relu, pairwise_linear, per_channel
from dape_jax.encodings.tile import (
    AdditiveBias,
    Params,
    ScoreMod,
    Tile,
)
from dape_jax.errors import ConfigError

EPSILON = 1e-6


def fire_bias(
    params: Params,
    tile: Tile,
    threshold: float,
    negative_slope: float,
    dtype: jnp.dtype,
) -> TileScores:
  """Returns B_h(i, j) = MLP_h(x), [N, t, s].

  x = log(|c (i - j)| + 1) / (log(|c max(i, |m L0|)| + 1) + 1e-6), where i is
  the 0-based position of the query within its document (arXiv 2310.04418,
  equation 4 and appendix listing). As in the listing, the normalizer's epsilon
  is outside the logarithm.

  Args:
    params: c and m, scalars; kernel_k [in, out] and bias_k [out] of the MLP.
    tile: tile with the positions.
    threshold: L0, in tokens.
    negative_slope: slope of the MLP's LeakyReLU; 0 is ReLU.
    dtype: compute dtype.
  """
  params = jax.tree.map(lambda x: x.astype(dtype), params)
  c = params["c"]
  distances = tile.distances().astype(dtype)
  length = jnp.maximum(
      tile.q_positions.astype(dtype), jnp.abs(params["m"] * threshold)
  )
  normalizer = jnp.log(jnp.abs(c * length) + 1) + EPSILON
  x = jnp.log(jnp.abs(c * distances) + 1) / normalizer
  shape = x.shape
  x = x.reshape(1, -1)
  num_layers = sum(name.startswith("kernel_") for name in params)
  for k in range(num_layers):
    kernel, bias = params[f"kernel_{k}"], params[f"bias_{k}"]
    x = pairwise_linear(x, kernel, tile.operand_dtype) + per_channel(bias)
    if k < num_layers - 1:
      x = leaky_relu(x, negative_slope)
  return x.reshape(-1, *shape)


@dataclasses.dataclass(frozen=True)
class FireTile(AdditiveBias):
  threshold: float
  negative_slope: float

  in_kernel: ClassVar[bool] = True

  def bias(self, params: Params, tile: Tile, dtype: jnp.dtype):
    return fire_bias(params, tile, self.threshold, self.negative_slope, dtype)


class Fire(PositionalEncoding):
  """B_h(i, j) = MLP_h(log(|c (i - j)| + 1) / log(|c max(i, |m L0|)| + 1)).

  See `fire_bias` for the exact formula. c and m are learned, 0.1 and 1 at init;
  the MLP is U(-1/sqrt(fan_in), 1/sqrt(fan_in)) at init. The released modules
  have one hidden layer; the paper's formula has two. FIRE-S shares one set of
  parameters between layers (`ModelConfig.share_encoding`). Keys after the query
  use the distance j - i and the same normalizer, so the ratio may exceed 1.

  Source: Li et al. 2024, equation 4, arXiv 2310.04418.
  Extrapolates: yes.

  Attributes:
    num_heads: N.
    threshold: L0 in tokens, fixed; the learned factor m (1 at init) scales it.
    fire_width: hidden width of the MLP.
    fire_layers: hidden layers of the MLP, 1 or 2.
    negative_slope: slope of the hidden units; 0 (ReLU) as published, 0.01
      in DAPE-FIRE's released code.
  """

  num_heads: int
  threshold: float = 512.0
  fire_width: int = 32
  fire_layers: int = 1
  negative_slope: float = 0.0

  def __post_init__(self):
    if self.threshold <= 0:
      raise ConfigError(
          f"threshold={self.threshold}: must be a length in tokens above 0."
      )
    if self.fire_width < 1:
      raise ConfigError(f"fire_width={self.fire_width}: must be 1 or more.")
    if self.fire_layers not in (1, 2):
      raise ConfigError(f"fire_layers={self.fire_layers}: must be 1 or 2.")
    super().__post_init__()

  def setup(self):
    constant = jax.nn.initializers.constant
    params = {
        "c": self.param("c", constant(0.1), ()),
        "m": self.param("m", constant(1.0), ()),
    }
    sizes = [1, *[self.fire_width] * self.fire_layers, self.num_heads]
    for k, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
      init = symmetric_uniform(fan_in)
      kernel, bias = f"kernel_{k}", f"bias_{k}"
      params[kernel] = self.param(kernel, init, (fan_in, fan_out))
      params[bias] = self.param(bias, init, (fan_out,))
    self.values = params

  def score_mod(self) -> ScoreMod:
    function = FireTile(self.threshold, self.negative_slope)
    return ScoreMod(dict(self.values), function)
