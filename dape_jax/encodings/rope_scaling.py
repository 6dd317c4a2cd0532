"""RoPE read beyond its trained length: PI, NTK-aware, dynamic NTK and YaRN.

Each gives the inverse frequencies of Hugging Face transformers. With factor 1
each is RoPE.
"""

import math

import numpy as np

from dape_jax.encodings.rope import Rope, rope_frequencies
from dape_jax.errors import ConfigError


def ntk_theta(theta: float, factor: float, dim: int) -> float:
  """Returns theta factor^(d / (d - 2)), the base of NTK-aware scaling.

  Under it the slowest pair turns `factor` times slower, the fastest as before
  (Peng et al. 2023, section 3.1, arXiv 2309.00071).

  Args:
    theta: base of the frequencies of `dim` channels.
    factor: read length over trained length.
    dim: turned channels d. A single pair turns by 1 whatever the base.
  """
  return theta if dim == 2 else theta * factor ** (dim / (dim - 2))


def yarn_ramp(
    dim: int,
    theta: float,
    train_length: int,
    beta_fast: float,
    beta_slow: float,
) -> np.ndarray:
  """Returns how far each pair is interpolated, from 0 to 1, [dim/2] float64.

  0 for pairs that turn `beta_fast` times or more within the trained length, 1
  for those that turn `beta_slow` times or fewer, linear in the pair's index
  between them. The ends are rounded to whole pairs, as in the released code.
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
        f"factor={factor}: must be 1 or more, the read length over the trained"
        " one."
    )


def _check_train_length(train_length: int) -> None:
  if train_length < 1:
    raise ConfigError(f"train_length={train_length}: must be 1 token or more.")


class RopePi(Rope):
  """q_i and k_j turned by i and j times theta^(-2k/d) / factor.

  Position interpolation: all positions are squeezed into the trained range.
  Everything else is RoPE's.

  Source: Chen et al. 2023, section 2.3, arXiv 2306.15595.
  Extrapolates: after some fine-tuning at the longer length.

  Attributes:
    num_heads: N.
    rope_theta: base of the geometric frequencies.
    fraction: part of the head dim that is turned.
    factor: s, the read length over the trained one.
  """

  factor: float = 4.0

  def __post_init__(self):
    _check_factor(self.factor)
    super().__post_init__()

  def frequencies(self, dim: int) -> np.ndarray:
    return rope_frequencies(dim, self.rope_theta) / self.factor


class RopeNtk(Rope):
  """q_i and k_j turned by i and j times (theta s^(d/(d-2)))^(-2k/d).

  NTK-aware scaling by a fixed s = factor: the fastest pair turns as trained,
  the slowest s times slower. Everything else is RoPE's.

  Source: Peng et al. 2023, section 3.1, arXiv 2309.00071 (from bloc97, 2023).
  Extrapolates: yes, without fine-tuning.

  Attributes:
    num_heads: N.
    rope_theta: base of the geometric frequencies.
    fraction: part of the head dim that is turned.
    factor: s, the read length over the trained one.
  """

  factor: float = 4.0

  def __post_init__(self):
    _check_factor(self.factor)
    super().__post_init__()

  def frequencies(self, dim: int) -> np.ndarray:
    theta = ntk_theta(self.rope_theta, self.factor, dim)
    return rope_frequencies(dim, theta)


class RopeDynamicNtk(Rope):
  """q_i and k_j turned as by RopeNtk, s = factor L / L_train - (factor - 1).

  L is `length` where it passes the trained length L_train; otherwise s is 1,
  which is RoPE. L is a setting, not the length of the call: a cache keeps keys
  already turned, and keys turned for one s must never meet queries turned for
  another. So one model has one s, and whoever evaluates sets `length` to the
  longest text to be read. Positions beyond it are turned by the same s.

  Source: Peng et al. 2023, section 3.3, arXiv 2309.00071; `factor` is Hugging
  Face's, whose formula this is.
  Extrapolates: yes, without fine-tuning.

  Attributes:
    num_heads: N.
    rope_theta: base of the geometric frequencies.
    fraction: part of the head dim that is turned.
    factor: 1 scales by L / L_train, larger numbers by more.
    train_length: L_train in tokens.
    length: L, the longest text to be read, in tokens; 0 is train_length.
  """

  factor: float = 1.0
  train_length: int = 512
  length: int = 0

  def __post_init__(self):
    _check_factor(self.factor)
    _check_train_length(self.train_length)
    if self.length < 0:
      raise ConfigError(
          f"length={self.length}: must be the longest text to be read, in"
          " tokens, or 0 for train_length."
      )
    super().__post_init__()

  def frequencies(self, dim: int) -> np.ndarray:
    longer = max(self.length / self.train_length, 1.0)
    scale = self.factor * longer - (self.factor - 1)
    return rope_frequencies(dim, ntk_theta(self.rope_theta, scale, dim))


class RopeYarn(Rope):
  """q_i and k_j turned by i and j times theta^(-2k/d) (1 - r_k + r_k / s).

  YaRN: s = factor; r_k = 0 (as trained) for pairs that turn `beta_fast` times
  or more within the trained length, 1 (interpolated) for `beta_slow` times or
  fewer, see `yarn_ramp`. Turned channels of queries and keys are also
  multiplied by 0.1 ln s + 1 each, so scores by its square. Everything else is
  RoPE's.

  Source: Peng et al. 2023, sections 3.2 and 3.4, arXiv 2309.00071.
  Extrapolates: after little fine-tuning at a longer length.

  Attributes:
    num_heads: N.
    rope_theta: base of the geometric frequencies.
    fraction: part of the head dim that is turned.
    factor: s, the read length over the trained one.
    train_length: trained length in tokens.
    beta_fast: turns within it from which a pair stays as trained.
    beta_slow: turns within it up to which a pair is interpolated.
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
          f"rope_theta={self.rope_theta}: must be above 1 in YaRN, which tells"
          " slow pairs from fast ones."
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
