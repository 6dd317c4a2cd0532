"""The context-sensitive tasks of the Chomsky-hierarchy evaluation.

Deletang et al. 2023 (arXiv 2207.02098) define them; token ids and the answers
to short problems are those of the code released with Ruoss et al. 2023 (arXiv
2305.16843).
"""

import math
import operator
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from dape_jax.data.tasks.binary import (
    bits_of,
    combined_numbers,
    integers_of,
    number_pairs,
    positive_bits,
)
from dape_jax.data.tasks.strings import FunctionTask, up_to_terminator


class DuplicateString(FunctionTask):
  """A bit string twice.

  y_i = y_{n+i} = x_i, 2n outputs.

  Source: Deletang et al. 2023 (arXiv 2207.02098), "Duplicate String".

  Chance: bits are fair.
  """

  num_inputs = 2
  num_outputs = 2
  chance = 0.5

  def output_length(self, length: int) -> int:
    return 2 * length

  def outputs_of(self, inputs_BxN: np.ndarray) -> np.ndarray:
    return np.concatenate([inputs_BxN, inputs_BxN], axis=1)


class MissingDuplicateString(FunctionTask):
  """The bit that is missing in a string given twice.

  A string of n // 2 bits stands there twice, with one of the 2 (n // 2) bits,
  uniformly chosen, replaced by 2; if n is odd, 3 follows. The one output is the
  replaced bit. The problem of length 1 is 1 with output 1.

  Source: Deletang et al. 2023 (arXiv 2207.02098), "Missing Duplicate".

  Chance: bits are fair.
  """

  num_inputs = 4
  num_outputs = 2
  chance = 0.5

  def output_length(self, length: int) -> int:
    return 1

  def inputs(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> np.ndarray:
    if length == 1:
      return np.ones((batch_size, 1), int)
    half_BxN = rng.integers(2, size=(batch_size, length // 2))
    end_BxN = np.full((batch_size, length % 2), 3)
    inputs_BxN = np.concatenate([half_BxN, half_BxN, end_BxN], axis=1)
    missing_B = rng.integers(2 * (length // 2), size=batch_size)
    np.put_along_axis(inputs_BxN, missing_B[:, None], 2, axis=1)
    return inputs_BxN

  def outputs_of(self, inputs_BxN: np.ndarray) -> np.ndarray:
    half = inputs_BxN.shape[1] // 2
    if half == 0:
      return inputs_BxN
    missing_Bx1 = np.argmax(inputs_BxN == 2, axis=1)[:, None]
    other_Bx1 = (missing_Bx1 + half) % (2 * half)
    return np.take_along_axis(inputs_BxN, other_Bx1, axis=1)


class OddsFirst(FunctionTask):
  """The bits at odd places, then those at even places, counted from 0.

  y = x_1 x_3 x_5 ... x_0 x_2 x_4 ..., n outputs.

  Source: Deletang et al. 2023 (arXiv 2207.02098), "Odds First", as the released
  code does it; the text beside that code counts places from 1.

  Chance: bits are fair.
  """

  num_inputs = 2
  num_outputs = 2
  chance = 0.5

  def output_length(self, length: int) -> int:
    return length

  def outputs_of(self, inputs_BxN: np.ndarray) -> np.ndarray:
    return np.concatenate([inputs_BxN[:, 1::2], inputs_BxN[:, ::2]], axis=1)


class _BinaryArithmetic(FunctionTask):
  """An operation on two binary numbers; inputs are `number_pairs`."""

  num_inputs = 3
  num_outputs = 3
  operation: ClassVar[Callable[[int, int], int]]

  def inputs(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> np.ndarray:
    return number_pairs(rng, length, batch_size)

  def outputs_of(self, inputs_BxN: np.ndarray) -> np.ndarray:
    num_outputs = self.output_length(inputs_BxN.shape[1])
    return combined_numbers(type(self).operation, inputs_BxN, num_outputs)

  def is_scored(self, outputs_BxM: np.ndarray) -> np.ndarray:
    return up_to_terminator(outputs_BxM)


class BinaryAddition(_BinaryArithmetic):
  """The sum of two binary numbers.

  Numbers are little-endian; the input is as in `binary.number_pairs`, the first
  number, 2, the second. The n + 1 outputs are the sum without leading zeros,
  the terminator 2, then zeros; the accuracy counts places up to and including
  the terminator. The sum of a single number, n below 3, is itself.

  Source: Deletang et al. 2023 (arXiv 2207.02098), "Binary Addition".

  Chance: of answering 1: half of the digits but the last, which always is 1.
  Measured with 2,048 rows at each length of 41..500, all places of a length
  together.
  """

  operation = operator.add
  chance = 0.5

  def output_length(self, length: int) -> int:
    return length + 1


class BinaryMultiplication(_BinaryArithmetic):
  """The product of two binary numbers.

  As `BinaryAddition`, with n outputs. A problem of length 1 or 2 has a single
  number and the answer zero: n - 1 zeros and the terminator.

  Source: Deletang et al. 2023 (arXiv 2207.02098), "Binary Multiplication".

  Chance: of answering 0, as a product is even with probability 3/4. Measured
  with 2,048 rows at each length of 41..500, all places of a length together.
  """

  operation = operator.mul
  chance = 0.498

  def output_length(self, length: int) -> int:
    return length


class ComputeSqrt(FunctionTask):
  """The floor of the square root of a binary number.

  The number is big-endian, uniform in 1..2^n - 1, with n digits; so is the
  root, with ceil(n / 2).

  Source: Deletang et al. 2023 (arXiv 2207.02098), "Compute Sqrt".

  Chance: of answering 1, as the first digits of roots are rather 1. Measured
  with 2,048 rows at each length of 41..500.
  """

  num_inputs = 2
  num_outputs = 2
  chance = 0.502

  def output_length(self, length: int) -> int:
    return -(-length // 2)

  def inputs(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> np.ndarray:
    return positive_bits(rng, np.full(batch_size, length), length)[:, ::-1]

  def outputs_of(self, inputs_BxN: np.ndarray) -> np.ndarray:
    roots = [math.isqrt(number) for number in integers_of(inputs_BxN[:, ::-1])]
    return bits_of(roots, self.output_length(inputs_BxN.shape[1]))[:, ::-1]


class BucketSort(FunctionTask):
  """Tokens of 0..4 in ascending order.

  y = sort(x), n outputs.

  Source: Deletang et al. 2023 (arXiv 2207.02098), "Bucket Sort".

  Chance: each token is a fifth of the outputs. But the place alone tells much:
  floor(5 i / n) at place i is right for .77 of the tokens at n = 41 and for .93
  at 500 (.90 as the mean over 41..500), without reading the input.
  """

  num_inputs = 5
  num_outputs = 5
  chance = 0.2
  chance_by_place = 0.9

  def output_length(self, length: int) -> int:
    return length

  def outputs_of(self, inputs_BxN: np.ndarray) -> np.ndarray:
    # Stable sorting of bytes counts them, which is much faster.
    return np.sort(inputs_BxN.astype(np.uint8), axis=1, kind="stable")


TASKS = {
    "duplicate_string": DuplicateString,
    "missing_duplicate_string": MissingDuplicateString,
    "odds_first": OddsFirst,
    "binary_addition": BinaryAddition,
    "binary_multiplication": BinaryMultiplication,
    "compute_sqrt": ComputeSqrt,
    "bucket_sort": BucketSort,
}
