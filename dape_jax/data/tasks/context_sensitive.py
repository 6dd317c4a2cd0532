"""The context-sensitive tasks of the Chomsky-hierarchy evaluation.

For their sources, see `regular`. Numbers may be of any size.
"""

import math
import operator
from collections.abc import Callable, Sequence

import numpy as np

from dape_jax.data.tasks.task import (
    TransductionTask,
    bit_string_task,
    terminated,
)

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
  """Combines the two numbers of each row; returns [B, m], terminated.

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


def binary_addition(inputs_BxN: np.ndarray) -> np.ndarray:
  """Binary Addition: the sum of two binary numbers.

  Numbers are little-endian; the input is the first number, 2, and the second
  (see `number_pairs`). The n + 1 outputs are the sum without leading zeros, the
  terminator 2, then zeros; the accuracy counts places up to and including the
  terminator. The sum of a single number, n below 3, is itself.

  Chance: answering 1, right for half of the digits and for the last, which is
  1. Measured with 2,048 rows at each length of 41..500, all places of a length
  together.
  """
  num_outputs = inputs_BxN.shape[1] + 1
  return combined_numbers(operator.add, inputs_BxN, num_outputs)


def binary_multiplication(inputs_BxN: np.ndarray) -> np.ndarray:
  """Binary Multiplication: the product of two binary numbers.

  As `binary_addition`, with n outputs. A problem of length 1 or 2 has a single
  number and the answer zero: n - 1 zeros and the terminator.

  Chance: answering 0, as a product is even with probability 3/4. Measured as
  for `binary_addition`.
  """
  return combined_numbers(operator.mul, inputs_BxN, inputs_BxN.shape[1])


def half_length(length: int) -> int:
  """Returns the number of digits of a square root, ceil(length / 2)."""
  return -(-length // 2)


def big_endian_numbers(
    rng: np.random.Generator, length: int, batch_size: int
) -> np.ndarray:
  """Returns digits [B, n] of numbers uniform in 1..2^n - 1."""
  return positive_bits(rng, np.full(batch_size, length), length)[:, ::-1]


def compute_sqrt(inputs_BxN: np.ndarray) -> np.ndarray:
  """Compute Sqrt: the floor of the square root of a binary number.

  The number is big-endian with n digits (see `big_endian_numbers`); so is the
  root, with ceil(n / 2).

  Chance: answering 1, which is more frequent in the first digits of roots.
  Measured with 2,048 rows at each length of 41..500.
  """
  roots = [math.isqrt(number) for number in integers_of(inputs_BxN[:, ::-1])]
  return bits_of(roots, half_length(inputs_BxN.shape[1]))[:, ::-1]


def duplicate_string(inputs_BxN: np.ndarray) -> np.ndarray:
  """Duplicate String: a bit string twice.

  y_i = y_{n+i} = x_i, 2n outputs.

  Chance: bits are fair.
  """
  return np.concatenate([inputs_BxN, inputs_BxN], axis=1)


def doubled_strings(
    rng: np.random.Generator, length: int, batch_size: int
) -> np.ndarray:
  """Returns the inputs of `missing_duplicate_string`."""
  if length == 1:
    return np.ones((batch_size, 1), int)
  half_BxN = rng.integers(2, size=(batch_size, length // 2))
  end_BxN = np.full((batch_size, length % 2), 3)
  inputs_BxN = np.concatenate([half_BxN, half_BxN, end_BxN], axis=1)
  missing_B = rng.integers(2 * (length // 2), size=batch_size)
  np.put_along_axis(inputs_BxN, missing_B[:, None], 2, axis=1)
  return inputs_BxN


def missing_duplicate_string(inputs_BxN: np.ndarray) -> np.ndarray:
  """Missing Duplicate: the missing bit of a string given twice.

  A string of n // 2 bits is repeated, and one of the 2 (n // 2) bits, chosen
  uniformly, is replaced by 2; if n is odd, 3 follows. The one output is the
  replaced bit. The problem of length 1 is 1 with output 1.

  Chance: bits are fair.
  """
  half = inputs_BxN.shape[1] // 2
  if half == 0:
    return inputs_BxN
  missing_Bx1 = np.argmax(inputs_BxN == 2, axis=1)[:, None]
  other_Bx1 = (missing_Bx1 + half) % (2 * half)
  return np.take_along_axis(inputs_BxN, other_Bx1, axis=1)


def odds_first(inputs_BxN: np.ndarray) -> np.ndarray:
  """Odds First: the bits at odd places, then those at even places, from 0.

  y = x_1 x_3 x_5 ... x_0 x_2 x_4 ..., n outputs, as in the released code; its
  documentation counts places from 1.

  Chance: bits are fair.
  """
  return np.concatenate([inputs_BxN[:, 1::2], inputs_BxN[:, ::2]], axis=1)


def bucket_sort(inputs_BxN: np.ndarray) -> np.ndarray:
  """Bucket Sort: tokens of 0..4 in ascending order.

  y = sort(x), n outputs.

  Chance: each token is a fifth of the outputs. But the place alone is
  informative: floor(5 i / n) at place i is right for .77 of the tokens at n =
  41 and for .93 at 500 (.90 as the mean over 41..500), without reading the
  input.
  """
  # A stable sort of bytes is a counting sort, which is much faster.
  return np.sort(inputs_BxN.astype(np.uint8), axis=1, kind="stable")


TASKS = {
    "duplicate_string": bit_string_task(
        outputs_of=duplicate_string, output_length=lambda n: 2 * n
    ),
    "missing_duplicate_string": TransductionTask(
        num_inputs=4,
        num_outputs=2,
        chance=0.5,
        inputs=doubled_strings,
        outputs_of=missing_duplicate_string,
    ),
    "odds_first": bit_string_task(
        outputs_of=odds_first, output_length=lambda n: n
    ),
    "binary_addition": TransductionTask(
        num_inputs=3,
        num_outputs=3,
        chance=0.5,
        inputs=number_pairs,
        outputs_of=binary_addition,
        output_length=lambda n: n + 1,
        is_terminated=True,
    ),
    "binary_multiplication": TransductionTask(
        num_inputs=3,
        num_outputs=3,
        chance=0.498,
        inputs=number_pairs,
        outputs_of=binary_multiplication,
        output_length=lambda n: n,
        is_terminated=True,
    ),
    "compute_sqrt": TransductionTask(
        num_inputs=2,
        num_outputs=2,
        chance=0.502,
        inputs=big_endian_numbers,
        outputs_of=compute_sqrt,
        output_length=half_length,
    ),
    "bucket_sort": TransductionTask(
        num_inputs=5,
        num_outputs=5,
        chance=0.2,
        chance_by_place=0.9,
        outputs_of=bucket_sort,
        output_length=lambda n: n,
    ),
}
