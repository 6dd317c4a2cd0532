"""Rows of bits as integers of any size, and problems of two such integers."""

from collections.abc import Callable, Sequence

import numpy as np

from dape_jax.data.tasks.strings import terminated

# Stands between the two numbers of a sum or product.
SEPARATOR = 2


def integers_of(bits_BxN: np.ndarray) -> list[int]:
  """Returns the integers that little-endian bits [B, n] write, of any size."""
  packed_BxW = np.packbits(bits_BxN == 1, axis=1, bitorder="little")
  return [int.from_bytes(row.tobytes(), "little") for row in packed_BxW]


def bits_of(integers: Sequence[int], num_bits: int) -> np.ndarray:
  """Returns little-endian bits, uint8 [B, num_bits]; `num_bits` is enough."""
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
    sizes_B: integers [B], 1..num_bits; bits at and behind the size are 0.
    num_bits: bits in a row.
  """
  places_N = np.arange(num_bits)[None]
  bits_BxN = np.zeros((len(sizes_B), num_bits), int)
  # Zeros are drawn again, which leaves the others uniform at every size.
  while (zero_B := ~bits_BxN.any(axis=1)).any():
    drawn_BxN = rng.integers(2, size=(zero_B.sum(), num_bits))
    bits_BxN[zero_B] = drawn_BxN * (places_N < sizes_B[zero_B, None])
  return bits_BxN


def number_pairs(
    rng: np.random.Generator, length: int, batch_size: int
) -> np.ndarray:
  """Returns two little-endian numbers with 2 between, integers [B, n].

  The first has s digits, s uniform in 1..n-2, and the second the n - 1 - s
  others; each is uniform in 1..2^digits - 1. A row of length 1 or 2 is one
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
  """Returns `combine` of the numbers of each row, terminated, [B, m].

  Args:
    combine: of the first and the second number.
    pairs_BxN: as of `number_pairs`; the second number of a row without
      separator is 0.
    num_outputs: m, at least one more than there are digits.
  """
  is_separator_BxN = pairs_BxN == SEPARATOR
  behind_BxN = np.cumsum(is_separator_BxN, axis=1) > 0
  sizes_B = np.sum(~behind_BxN, axis=1).tolist()
  first = integers_of(np.where(behind_BxN, 0, pairs_BxN))
  second = integers_of(np.where(behind_BxN, pairs_BxN, 0))
  combined = [
      combine(a, b >> (size + 1)) for a, b, size in zip(first, second, sizes_B)
  ]
  # Zero is written with one digit, unless the terminator takes the only place.
  digits_B = np.array([max(value.bit_length(), 1) for value in combined])
  digits_B = np.minimum(digits_B, num_outputs - 1)
  return terminated(bits_of(combined, num_outputs), digits_B)
