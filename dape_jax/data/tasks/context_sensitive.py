"""The context-sensitive tasks of the Chomsky-hierarchy evaluation.

Defined by Deletang et al. 2023 (arXiv 2207.02098). Token ids, and answers to short
problems, follow the code released with Ruoss et al. 2023 (arXiv 2305.16843).
"""

import numpy as np

from dape_jax.data.tasks.binary import (
    BinaryAddition,
    BinaryMultiplication,
    ComputeSqrt,
)
from dape_jax.data.tasks.task import FunctionTask


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
  """The missing bit of a string given twice.

  A string of n // 2 bits is repeated, and one of the 2 (n // 2) bits, chosen
  uniformly, is replaced by 2; if n is odd, 3 follows. The one output is the
  replaced bit. The problem of length 1 is 1 with output 1.

  Source: Deletang et al. 2023 (arXiv 2207.02098), "Missing Duplicate".

  Chance: bits are fair.
  """

  num_inputs = 4
  num_outputs = 2
  chance = 0.5

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

  Source: Deletang et al. 2023 (arXiv 2207.02098), "Odds First", as in the
  released code; its documentation counts places from 1.

  Chance: bits are fair.
  """

  num_inputs = 2
  num_outputs = 2
  chance = 0.5

  def output_length(self, length: int) -> int:
    return length

  def outputs_of(self, inputs_BxN: np.ndarray) -> np.ndarray:
    return np.concatenate([inputs_BxN[:, 1::2], inputs_BxN[:, ::2]], axis=1)


class BucketSort(FunctionTask):
  """Tokens of 0..4 in ascending order.

  y = sort(x), n outputs.

  Source: Deletang et al. 2023 (arXiv 2207.02098), "Bucket Sort".

  Chance: each token is a fifth of the outputs. But the place alone is informative:
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
    # Stable sort of bytes is a counting sort, which is much faster.
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
