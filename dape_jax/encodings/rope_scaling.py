"""RoPE beyond the training length: PI, NTK-aware, dynamic NTK and YaRN.

The inverse frequencies equal those of Hugging Face transformers. With factor 1,
each encoding is RoPE.
"""

import math

import numpy as np

from dape_jax.encodings.rope import Rope, rope_frequencies
from dape_jax.errors import ConfigError


def ntk_theta(theta: float, factor: float, dim: int) -> float:
  """Returns theta factor^(d / (d - 2)), the base of NTK-aware scaling.

  The slowest pair rotates `factor` times slower, the fastest as before
  (Peng et al. 2023, section 3.1, arXiv 2309.00071).

  Args:
    theta: base of the frequencies of `dim` channels.
    factor: evaluation length over training length.
    dim: rotated channels d. A single pair has frequency 1 for any base.
  """
  return theta if dim == 2 else theta * factor ** (dim / (dim - 2))


def yarn_ramp(
    dim: int,
    theta: float,
    train_length: int,
    beta_fast: float,
    beta_slow: float,
) -> np.ndarray:
  """Returns the interpolation weight of each pair, 0 to 1, [dim/2] float64.

  0 for pairs with at least `beta_fast` rotations within the training length, 1
  for pairs with at most `beta_slow`, and linear in the pair's index in between.
  The ends are rounded to whole pairs, as in the released code.
  """

  def pair_of(turns: float) -> float:
    return dim * math.log(train_length / (turns * 2 * math.pi), theta) / 2

  low = max(math.floor(pair_of(beta_fast)), 0)
  high = min(math.ceil(pair_of(beta_slow)), dim - 1)
  width = high - low or 0.001
  return np.clip((np.arange(dim // 2) - low) / width, 0, 1)


def _check_factor(factor: float) -> None:
  if factor < 1:
    raise ConfigError(
        f"factor={factor}: must be 1 or more, evaluation length over training"
        " length."
    )


def _check_train_length(train_length: int) -> None:
  if train_length < 1:
    raise ConfigError(f"train_length={train_length}: must be 1 token or more.")


class RopePi(Rope):
  """q_i and k_j rotated by i and j times theta^(-2k/d) / factor.

  Position interpolation compresses all positions into the trained range.
  Everything else is as in RoPE.

  Source: Chen et al. 2023, section 2.3, arXiv 2306.15595.
  Extrapolates: after some fine-tuning at the longer length.

  Attributes:
    num_heads: N.
    rope_theta: base of the geometric frequencies.
    fraction: fraction of the head dim that is rotated.
    factor: s, evaluation length over training length.
  """

  factor: float = 4.0

  def __post_init__(self):
    _check_factor(self.factor)
    super().__post_init__()

  def frequencies(self, dim: int) -> np.ndarray:
    return rope_frequencies(dim, self.rope_theta) / self.factor


class RopeNtk(Rope):
  """q_i and k_j rotated by i and j times (theta s^(d/(d-2)))^(-2k/d).

  NTK-aware scaling by a fixed s = factor: the fastest pair rotates as in
  training, the slowest s times slower. Everything else is as in RoPE.

  Source: Peng et al. 2023, section 3.1, arXiv 2309.00071 (from bloc97, 2023).
  Extrapolates: yes, without fine-tuning.

  Attributes:
    num_heads: N.
    rope_theta: base of the geometric frequencies.
    fraction: fraction of the head dim that is rotated.
    factor: s, evaluation length over training length.
  """

  factor: float = 4.0

  def __post_init__(self):
    _check_factor(self.factor)
    super().__post_init__()

  def frequencies(self, dim: int) -> np.ndarray:
    theta = ntk_theta(self.rope_theta, self.factor, dim)
    return rope_frequencies(dim, theta)


class RopeDynamicNtk(Rope):
  """q_i and k_j rotated as in RopeNtk, s = factor L / L_train - (factor - 1).

  L is `length` if that exceeds the training length L_train; otherwise s is 1,
  which is RoPE. L is an option, not the length of the call: a cache stores
  rotated keys, and queries and keys must be rotated with the same s. One model
  therefore has one s; for evaluation, set `length` to the length of the longest
  text. Positions beyond it are rotated with the same s.

  Source: Peng et al. 2023, section 3.3, arXiv 2309.00071; the formula with
  `factor` is Hugging Face's.
  Extrapolates: yes, without fine-tuning.

  Attributes:
    num_heads: N.
    rope_theta: base of the geometric frequencies.
    fraction: fraction of the head dim that is rotated.
    factor: 1 scales by L / L_train, larger numbers by more.
    train_length: L_train in tokens.
    length: L, length of the longest text in tokens; 0 for train_length.
  """

  factor: float = 1.0
  train_length: int = 512
  length: int = 0

  def __post_init__(self):
    _check_factor(self.factor)
    _check_train_length(self.train_length)
    if self.length < 0:
      raise ConfigError(
          f"length={self.length}: must be the length of the longest text in"
          " tokens, or 0 for train_length."
      )
    super().__post_init__()

  def frequencies(self, dim: int) -> np.ndarray:
    longer = max(self.length / self.train_length, 1.0)
    scale = self.factor * longer - (self.factor - 1)
    return rope_frequencies(dim, ntk_theta(self.rope_theta, scale, dim))


class RopeYarn(Rope):
  """q_i and k_j rotated by i and j times theta^(-2k/d) (1 - r_k + r_k / s).

  YaRN: s = factor; r_k = 0 (as trained) for pairs with at least `beta_fast`
  rotations within the training length, 1 (interpolated) for pairs with at most
  `beta_slow`, see `yarn_ramp`. Rotated channels of both queries and keys are
  multiplied by 0.1 ln s + 1, so scores by its square. Everything else is as in
  RoPE.

  Source: Peng et al. 2023, sections 3.2 and 3.4, arXiv 2309.00071.
  Extrapolates: after little fine-tuning at a longer length.

  Attributes:
    num_heads: N.
    rope_theta: base of the geometric frequencies.
    fraction: fraction of the head dim that is rotated.
    factor: s, evaluation length over training length.
    train_length: training length in tokens.
    beta_fast: pairs with at least this many rotations stay as trained.
    beta_slow: pairs with at most this many rotations are interpolated.
  """

  factor: float = 4.0
  train_length: int = 512
  beta_fast: float = 32.0
  beta_slow: float = 1.0

  def __post_init__(self):
    _check_factor(self.factor)
    _check_train_length(self.train_length)
    if self.rope_theta <= 1:
      raise ConfigError(
          f"rope_theta={self.rope_theta}: must be above 1 in YaRN, which"
          " distinguishes slow pairs from fast ones."
      )
    if self.beta_slow <= 0:
      raise ConfigError(f"beta_slow={self.beta_slow}: must be above 0.")
    if self.beta_fast <= self.beta_slow:
      raise ConfigError(
          f"beta_fast={self.beta_fast}: must be above beta_slow,"
          f" {self.beta_slow}."
      )
    super().__post_init__()

  def frequencies(self, dim: int) -> np.ndarray:
    plain = rope_frequencies(dim, self.rope_theta)
    ramp = yarn_ramp(
        dim,
        self.rope_theta,
        self.train_length,
        self.beta_fast,
        self.beta_slow,
    )
    return plain * (1 - ramp + ramp / self.factor)

  def magnitude(self) -> float:
    return 0.1 * math.log(self.factor) + 1
