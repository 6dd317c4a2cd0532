"""DAPE (arXiv 2405.14722) around any additive base.

A small network reads the scores S and the base's bias B, mixes all heads, and
adds its output to S + B. It has no output bias, which would add a constant to
each row. Softmax cancels such a constant, so the exact gradient is 0 and Adam
would turn rounding noise into full-size steps.
"""

import dataclasses
import functools
import math

import jax.numpy as jnp

from dape_jax.array_typing import TileScores
from dape_jax.encodings.around import Around, TileAround, base_params
from dape_jax.encodings.base import symmetric_uniform
from dape_jax.encodings.pairwise import (
    leaky_relu,
    pairwise_linear,
    per_channel,
)
from dape_jax.encodings.tile import (
    AdditiveBias,
    Params,
    ScoreMod,
    Tile,
    TileFunction,
)
from dape_jax.errors import ConfigError

NEGATIVE_SLOPE = 0.01
FORMS = ("concat_residual", "concat", "add_residual", "static")


@dataclasses.dataclass(frozen=True)
class DapeTile(TileAround):
  """A = S + B + f([S; B]), f a two-layer network over heads at each (i, j).

  See `Dape` for `form`; without a base there is no B.
  """

  form: str = "concat_residual"

  def __call__(
      self, params: Params, scores: TileScores, tile: Tile
  ) -> TileScores:
    dtype = scores.dtype
    hidden_kernel, hidden_bias, output_kernel = (
        params[name].astype(dtype)
        for name in ("hidden_kernel", "hidden_bias", "output_kernel")
    )
    linear = functools.partial(
        pairwise_linear,
        operand_dtype=tile.operand_dtype,
        split=self.large_bias,
    )
    bias = self.bias(params, tile, dtype)
    # Keep pairs flat throughout: in a kernel every reshape moves all data.
    inputs = scores.reshape(len(scores), -1)
    if bias is not None:
      bias = bias.reshape(len(bias), -1)
      if self.form == "add_residual":
        inputs = inputs + bias
      elif self.form == "static":
        inputs = bias
      else:
        inputs = jnp.concatenate([inputs, bias])
    hidden = linear(inputs, hidden_kernel) + per_channel(hidden_bias)
    added = linear(leaky_relu(hidden, NEGATIVE_SLOPE), output_kernel)
    if bias is not None and self.form != "concat":
      added = added + bias
    return scores + added.reshape(scores.shape)


class AroundAdditive(Around):
  """Base class of Dape and DapeV2: wraps a base and holds the network.

  Attributes:
    base: an encoding that adds a bias or leaves the scores unchanged.
    width: M, hidden units of the network.
  """

  width: int = 32

  def __post_init__(self):
    if self.width < 1:
      raise ConfigError(f"width={self.width}: must be 1 or more.")
    if isinstance(self.base, AroundAdditive):
      raise ConfigError(
          f"base={type(self.base).__name__}: DAPE wraps an encoding with a"
          " static bias or none, but not another DAPE."
      )
    super().__post_init__()

  def _window(self) -> tuple[int, ...]:
    """Returns the leading axes of the kernels."""
    return ()

  def _inputs_per_head(self, has_bias: bool) -> int:
    """Returns the number of input channels per head."""
    return 2 if has_bias else 1

  def _has_hidden_zeros(self) -> bool:
    """Returns whether half of the inputs are 0 and omitted."""
    return False

  def _function(self, base: TileFunction | None) -> TileFunction:
    raise NotImplementedError

  def setup(self):
    base = self.base.score_mod()
    if base is not None and not isinstance(base.function, AdditiveBias):
      raise ConfigError(
          f"base={type(self.base).__name__}: DAPE wraps an encoding that adds"
          " a bias to the scores or leaves them unchanged."
      )
    window = self._window()
    size = math.prod(window)
    channels = self.num_heads * self._inputs_per_head(base is not None)
    fan_in = channels * (2 if self._has_hidden_zeros() else 1)
    hidden = symmetric_uniform(fan_in * size)
    output = symmetric_uniform(self.width * size)
    self.hidden_kernel = self.param(
        "hidden_kernel", hidden, (*window, channels, self.width)
    )
    self.hidden_bias = self.param("hidden_bias", hidden, (self.width,))
    self.output_kernel = self.param(
        "output_kernel", output, (*window, self.width, self.num_heads)
    )

  def score_mod(self) -> ScoreMod:
    base = self.base.score_mod()
    params = base_params(base) | {
        "hidden_kernel": self.hidden_kernel,
        "hidden_bias": self.hidden_bias,
        "output_kernel": self.output_kernel,
    }
    return ScoreMod(params, self._function(base and base.function))


class Dape(AroundAdditive):
  """A = S + B + f([S; B]), f a network over all heads at each (i, j).

  f is Linear(2N, M), LeakyReLU(0.01), Linear(M, N). NoPE and RoPE have no B, so
  f then has N inputs. Parameters are U(-1/sqrt(fan_in), 1/sqrt(fan_in)) at
  init, so f does not start at zero. Departure: no output bias (see the module
  docstring). Keys after the query are treated as in the base.

  `form` selects a variant of the paper's ablation:
    "concat_residual": S + B + f([S; B]), the default.
    "concat": S + f([S; B]).
    "add_residual": S + B + f(S + B), N inputs.
    "static": S + B + f(B), the control that cannot adapt to the data. f is the
      same network with S replaced by 0; the rows for S are omitted.

  Source: Zheng et al. 2024, equation 4 and section 5, arXiv 2405.14722.
  Extrapolates: yes, if the base does.

  Attributes:
    base: an encoding that adds a bias or leaves the scores unchanged, for
      example `Dape(KerpleLog(num_heads=12))`.
    width: M.
    form: see above.
  """

  form: str = "concat_residual"

  def __post_init__(self):
    if self.form not in FORMS:
      raise ConfigError(
          f"form={self.form!r}: must be one of {', '.join(FORMS)}."
      )
    super().__post_init__()

  def _inputs_per_head(self, has_bias):
    if self.form == "static" and not has_bias:
      raise ConfigError(
          f'form="static": {type(self.base).__name__} has no static bias for'
          " the network to read."
      )
    return 2 if has_bias and self.form.startswith("concat") else 1

  def _has_hidden_zeros(self):
    return self.form == "static"

  def _function(self, base):
    return DapeTile(base, self.form)
