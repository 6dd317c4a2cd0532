"""The regular tasks of the Chomsky-hierarchy evaluation.

Defined by Deletang et al. 2023 (arXiv 2207.02098); docstrings open with their
names. Token ids, and answers to short problems, follow the code released with
Ruoss et al. 2023 (arXiv 2305.16843). Each task has one output token.
"""

import numpy as np

from dape_jax.data.tasks.task import TransductionTask, bit_string_task

MODULUS = 5


def even_pairs(inputs_BxN: np.ndarray) -> np.ndarray:
  """Even Pairs: the parity of the number of pairs 01 and 10 in a bit string.

  y = sum_i [x_i != x_{i+1}] mod 2, which is x_1 xor x_n.

  Chance: x_1 and x_n are independent fair bits.
  """
  return inputs_BxN[:, :1] ^ inputs_BxN[:, -1:]


def odd_length(length: int) -> int:
  """Returns the largest odd number up to `length`."""
  return length - (length + 1) % 2


def random_sums(
    rng: np.random.Generator, length: int, batch_size: int
) -> np.ndarray:
  """Returns uniform digits that alternate with uniform operators."""
  inputs_BxN = np.empty((batch_size, odd_length(length)), int)
  digits_BxK, operators_BxK = inputs_BxN[:, ::2], inputs_BxN[:, 1::2]
  digits_BxK[:] = rng.integers(MODULUS, size=digits_BxK.shape)
  operators_BxK[:] = MODULUS + rng.integers(3, size=operators_BxK.shape)
  return inputs_BxN


def modular_arithmetic(inputs_BxN: np.ndarray) -> np.ndarray:
  """Modular Arithmetic (Simple): a sum of products modulo 5, no brackets.

  Digits 0..4 (their own ids) alternate with operators + 5, - 6 and * 7, all
  uniform; multiplication binds first. Problems have odd length, so an even n
  becomes n - 1. Id 8 is the empty symbol of the released code and never occurs.

  Departure: the released code multiplies in 32 bits without reducing and so
  errs, rarely, on very long products; values here are exact.

  Chance: a term is 0 with probability 3/11 and else uniform, so a value's
  probability is within (1/11)^terms of 1/5.
  """
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


def parity_check(inputs_BxN: np.ndarray) -> np.ndarray:
  """Parity Check: the parity of the number of ones in a bit string.

  y = sum_i x_i mod 2.

  Chance: a sum of fair bits is odd half of the time.
  """
  return inputs_BxN.sum(axis=1, keepdims=True) % 2


def cycle_navigation(inputs_BxN: np.ndarray) -> np.ndarray:
  """Cycle Navigation: the final place of a walk on a cycle of 5 places.

  y = sum_i (x_i - 1) mod 5: ids 0, 1 and 2 step by -1, 0 and +1, from place 0.

  Chance: the walk is within .54^n of uniform on the 5 places.
  """
  return (inputs_BxN - 1).sum(axis=1, keepdims=True) % MODULUS


TASKS = {
    "even_pairs": bit_string_task(outputs_of=even_pairs),
    "modular_arithmetic": TransductionTask(
        num_inputs=MODULUS + 4,
        num_outputs=MODULUS,
        chance=0.2,
        input_length=odd_length,
        inputs=random_sums,
        outputs_of=modular_arithmetic,
    ),
    "parity_check": bit_string_task(outputs_of=parity_check),
    "cycle_navigation": TransductionTask(
        num_inputs=3,
        num_outputs=MODULUS,
        chance=0.2,
        outputs_of=cycle_navigation,
    ),
}
