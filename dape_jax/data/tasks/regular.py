"""The regular tasks of the Chomsky-hierarchy evaluation.

Defined by Deletang et al. 2023 (arXiv 2207.02098). Token ids, and answers to short
problems, follow the code released with Ruoss et al. 2023 (arXiv 2305.16843). Each has one output token.
"""

import numpy as np

from dape_jax.data.tasks.task import FunctionTask

MODULUS = 5


class EvenPairs(FunctionTask):
  """The parity of the number of pairs 01 and 10 in a bit string.

  y = sum_i [x_i != x_{i+1}] mod 2, which is x_1 xor x_n.

  Source: Deletang et al. 2023 (arXiv 2207.02098), "Even Pairs".

  Chance: x_1 and x_n are independent fair bits.
  """

  num_inputs = 2
  num_outputs = 2
  chance = 0.5

  def outputs_of(self, inputs_BxN: np.ndarray) -> np.ndarray:
    return inputs_BxN[:, :1] ^ inputs_BxN[:, -1:]


class ModularArithmetic(FunctionTask):
  """The value modulo 5 of digits joined by +, - and *, without brackets.

  Digits 0..4 (their own ids) alternate with operators + 5, - 6 and * 7, all
  uniform; multiplication binds first. Problems have odd length, so an even n
  becomes n - 1. Id 8 is the empty symbol of the released code and never
  occurs.

  Source: Deletang et al. 2023 (arXiv 2207.02098), "Modular Arithmetic
  (Simple)". Departure: the released code multiplies in 32 bits without reducing
  and so errs, rarely, on very long products; values here are exact.

  Chance: a term is 0 with probability 3/11 and else uniform, so a value's
  probability is within (1/11)^terms of 1/5.
  """

  num_inputs = MODULUS + 4
  num_outputs = MODULUS
  chance = 0.2

  def input_length(self, length: int) -> int:
    return length - (length + 1) % 2

  def inputs(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> np.ndarray:
    inputs_BxN = np.empty((batch_size, self.input_length(length)), int)
    digits_BxK = inputs_BxN[:, ::2]
    digits_BxK[:] = rng.integers(MODULUS, size=digits_BxK.shape)
    operators_BxK = inputs_BxN[:, 1::2]
    operators_BxK[:] = MODULUS + rng.integers(3, size=operators_BxK.shape)
    return inputs_BxN

  def outputs_of(self, inputs_BxN: np.ndarray) -> np.ndarray:
    minus, times = MODULUS + 1, MODULUS + 2
    # The sum of completed terms, and the term still being multiplied.
    sum_B, term_B = 0, inputs_BxN[:, 0]
    # Makes columns contiguous in memory for the loop.
    columns_NxB = np.ascontiguousarray(inputs_BxN.T)
    for operator_B, digit_B in zip(columns_NxB[1::2], columns_NxB[2::2]):
      multiplied_B = operator_B == times
      sum_B = sum_B + np.where(multiplied_B, 0, term_B)
      sign_B = np.where(operator_B == minus, -1, 1)
      term_B = np.where(multiplied_B, term_B, sign_B) * digit_B % MODULUS
    return ((sum_B + term_B) % MODULUS)[:, None]


class ParityCheck(FunctionTask):
  """The parity of the number of ones in a bit string.

  y = sum_i x_i mod 2.

  Source: Deletang et al. 2023 (arXiv 2207.02098), "Parity Check".

  Chance: a sum of fair bits is odd half of the time.
  """

  num_inputs = 2
  num_outputs = 2
  chance = 0.5

  def outputs_of(self, inputs_BxN: np.ndarray) -> np.ndarray:
    return inputs_BxN.sum(axis=1, keepdims=True) % 2


class CycleNavigation(FunctionTask):
  """The final place of a walk on a cycle of 5 places.

  y = sum_i (x_i - 1) mod 5: ids 0, 1 and 2 step by -1, 0 and +1, from place 0.

  Source: Deletang et al. 2023 (arXiv 2207.02098), "Cycle Navigation".

  Chance: the walk is within .54^n of uniform on the 5 places.
  """

  num_inputs = 3
  num_outputs = MODULUS
  chance = 0.2

  def outputs_of(self, inputs_BxN: np.ndarray) -> np.ndarray:
    return (inputs_BxN - 1).sum(axis=1, keepdims=True) % MODULUS


TASKS = {
    "even_pairs": EvenPairs,
    "modular_arithmetic": ModularArithmetic,
    "parity_check": ParityCheck,
    "cycle_navigation": CycleNavigation,
}
