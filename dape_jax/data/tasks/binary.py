"""Binary arithmetic tasks of the Chomsky-hierarchy evaluation.

See `context_sensitive` for their sources. Numbers may be of any size.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from dape_jax.data.tasks.task import FunctionTask, terminated, up_to_terminator

# Separates the two operands.
SEPARATOR = 2


def integers_of(bits_BxN: np.ndarray) -> list[int]:
  """Returns the integers with little-endian bits [B, n]."""
  packed_BxW = np.packbits(bits_BxN == 1, axis=1, bitorder="little")
  return [int.from_bytes(row.tobytes(), "little") for row in packed_BxW]


def bits_of(integers: Sequence[int], num_bits: int) -> np.ndarray:
  """Returns little-endian bits, uint8 [B, num_bits]; every integer must fit."""
  num_bytes = -(-num_bits // 8)
  written = b"".join(value.to_bytes(num_bytes, "little") for value in integers)
  packed_BxW = np.frombuffer(written, np.uint8).reshape(-1, num_bytes)
  return np.unpackbits(packed_BxW, axis=1, count=num_bits, bitorder="little")


def positive_bits(
    rng: np.random.Generator, sizes_B: np.ndarray, num_bits: int
) -> np.ndarray:
  """Returns bits of integers uniform in 1..2^size - 1, integers [B, num_bits].

  Args:
    rng: source of randomness.
    sizes_B: integers [B], 1..num_bits; bits from the size on are 0.
    num_bits: bits per row.
  """
  places_N = np.arange(num_bits)[None]
  bits_BxN = np.zeros((len(sizes_B), num_bits), int)
  # Redrawing zeros leaves the other integers uniform at every size.
  while (zero_B := ~bits_BxN.any(axis=1)).any():
    drawn_BxN = rng.integers(2, size=(zero_B.sum(), num_bits))
    bits_BxN[zero_B] = drawn_BxN * (places_N < sizes_B[zero_B, None])
  return bits_BxN


def number_pairs(
    rng: np.random.Generator, length: int, batch_size: int
) -> np.ndarray:
  """Returns two little-endian numbers separated by 2, integers [B, n].

  The first has s digits, s uniform in 1..n-2, and the second the remaining
  n - 1 - s; each is uniform in 1..2^digits - 1. A row of length 1 or 2 is one
  number, uniform in 0..2^n - 2 as in the code released with Ruoss et al. 2023
  (arXiv 2305.16843).
  """
  if length <= 2:
    integers = rng.integers(2**length - 1, size=batch_size)
    return bits_of(integers.tolist(), length)
  sizes_Bx1 = rng.integers(1, length - 1, size=(batch_size, 1))
  first_BxN = positive_bits(rng, sizes_Bx1[:, 0], length)
  second_BxN = positive_bits(rng, length - 1 - sizes_Bx1[:, 0], length)
  places_N = np.arange(length)[None]
  shifted_BxN = np.take_along_axis(
      second_BxN, np.maximum(places_N - sizes_Bx1 - 1, 0), axis=1
  )
  return np.where(
      places_N == sizes_Bx1,
      SEPARATOR,
      np.where(places_N < sizes_Bx1, first_BxN, shifted_BxN),
  )


def combined_numbers(
    combine: Callable[[int, int], int], pairs_BxN: np.ndarray, num_outputs: int
) -> np.ndarray:
  """Applies `combine` to the two numbers of each row; returns [B, m], terminated.

  Args:
    combine: operation on the first and second number.
    pairs_BxN: see `number_pairs`; the second number of a row without separator
      is 0.
    num_outputs: m, at least one more than the number of digits.
  """
  is_separator_BxN = pairs_BxN == SEPARATOR
  behind_BxN = np.cumsum(is_separator_BxN, axis=1) > 0
  sizes_B = np.sum(~behind_BxN, axis=1).tolist()
  first = integers_of(np.where(behind_BxN, 0, pairs_BxN))
  second = integers_of(np.where(behind_BxN, pairs_BxN, 0))
  combined = [
      combine(a, b >> (size + 1)) for a, b, size in zip(first, second, sizes_B)
  ]
  # Zero has one digit, unless the terminator takes the only place.
  digits_B = np.array([max(value.bit_length(), 1) for value in combined])
  digits_B = np.minimum(digits_B, num_outputs - 1)
  return terminated(bits_of(combined, num_outputs), digits_B)


class _BinaryArithmetic(FunctionTask):
  """An operation on two binary numbers; see `number_pairs` for the inputs."""

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

  Numbers are little-endian; the input is the first number, 2, and the second (see
  `number_pairs`). The n + 1 outputs are the sum without leading zeros,
  the terminator 2, then zeros; the accuracy counts places up to and including
  the terminator. The sum of a single number, n below 3, is itself.

  Source: Deletang et al. 2023 (arXiv 2207.02098), "Binary Addition".

  Chance: answering 1, right for half of the digits and for the last, which is 1.
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

  Chance: answering 0, as a product is even with probability 3/4. Measured
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

  Chance: answering 1, which is more frequent in the first digits of roots. Measured
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
