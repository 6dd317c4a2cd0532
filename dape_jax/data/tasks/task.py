"""The interface of generated tasks, and helpers for tasks on strings."""

import abc
import dataclasses
from typing import ClassVar

import numpy as np

# Ends an answer that is shorter than its places; zeros follow.
TERMINATOR = 2


@dataclasses.dataclass(frozen=True)
class Examples:
  """A batch of generated rows.

  Attributes:
    tokens: int32 [B, T].
    targets: int32 [B, T], the expected answer at each place; arbitrary where none
      is expected.
    trained: bool [B, T], places that contribute to the loss.
    scored: bool [B, T], places that contribute to the accuracy.
  """

  tokens: np.ndarray
  targets: np.ndarray
  trained: np.ndarray
  scored: np.ndarray


class Task(abc.ABC):
  """A family of problems that can be generated at any length.

  Attributes:
    vocab_size: number of token ids.
    num_outputs: number of target ids.
    chance: accuracy of the best constant answer on long problems, to report with
      results.
    chance_by_place: accuracy of the best answer given length and place but not
      the input, if far above `chance`; else None.
    min_length: smallest length of a problem.
    variants: other tasks with the same ids, on which models trained on this one
      are also evaluated.
  """

  vocab_size: ClassVar[int]
  num_outputs: ClassVar[int]
  chance: ClassVar[float]
  chance_by_place: ClassVar[float | None] = None
  min_length: ClassVar[int] = 1
  variants: ClassVar[tuple[str, ...]] = ()

  @abc.abstractmethod
  def row_length(self, length: int) -> int:
    """Returns T, the number of tokens in a row for problems of this length."""

  @abc.abstractmethod
  def sample(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> Examples:
    """Returns problems of one length, a pure function of the state of `rng`."""


class TransductionTask(Task):
  """Problems with an input and an output, answered at placeholders.

  A row is the input followed by one placeholder, token id `num_inputs`, per output
  token (Ruoss et al. 2023, arXiv 2305.16843). Answers are not fed back, so all are
  given at once. Encoders and causal decoders process the same row.

  Attributes:
    num_inputs: number of input ids.
  """

  num_inputs: ClassVar[int]

  @property
  def vocab_size(self) -> int:
    return self.num_inputs + 1

  def input_length(self, length: int) -> int:
    """Returns the number of input tokens for problems of this length."""
    return length

  def output_length(self, length: int) -> int:
    """Returns the number of output tokens, 1 unless a task overrides it."""
    del length
    return 1

  @abc.abstractmethod
  def problems(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs [B, n] and outputs [B, m] of any integer dtype."""

  def is_scored(self, outputs: np.ndarray) -> np.ndarray:
    """Returns which output tokens count in the accuracy, bool [B, m]."""
    return np.ones(outputs.shape, bool)

  def row_length(self, length: int) -> int:
    return self.input_length(length) + self.output_length(length)

  def sample(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> Examples:
    inputs, outputs = self.problems(rng, length, batch_size)
    placeholders = np.full(outputs.shape, self.num_inputs)
    nowhere = np.zeros(inputs.shape, bool)
    return Examples(
        tokens=np.int32(np.concatenate([inputs, placeholders], axis=1)),
        targets=np.int32(np.concatenate([0 * inputs, outputs], axis=1)),
        trained=np.concatenate([nowhere, ~np.zeros(outputs.shape, bool)], 1),
        scored=np.concatenate([nowhere, self.is_scored(outputs)], axis=1),
    )


class FunctionTask(TransductionTask):
  """Problems whose outputs are a function of their inputs.

  By default inputs are independent and uniform over the `num_inputs` ids.
  """

  def inputs(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> np.ndarray:
    """Returns random inputs, integers [B, n]."""
    return rng.integers(self.num_inputs, size=(batch_size, length))

  @abc.abstractmethod
  def outputs_of(self, inputs_BxN: np.ndarray) -> np.ndarray:
    """Returns the outputs [B, m] of inputs [B, n], integers."""

  def problems(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> tuple[np.ndarray, np.ndarray]:
    inputs_BxN = self.inputs(rng, length, batch_size)
    return inputs_BxN, self.outputs_of(inputs_BxN)


def terminated(bits_BxN: np.ndarray, sizes_B: np.ndarray) -> np.ndarray:
  """Returns the first `sizes` bits of each row, the terminator, then zeros.

  Args:
    bits_BxN: integers [B, n].
    sizes_B: integers [B], at most n - 1.

  Returns:
    integers [B, n].
  """
  places_N = np.arange(bits_BxN.shape[1])[None]
  rest_BxN = np.where(places_N == sizes_B[:, None], TERMINATOR, 0)
  return np.where(places_N < sizes_B[:, None], bits_BxN, rest_BxN)


def up_to_terminator(outputs_BxM: np.ndarray) -> np.ndarray:
  """Returns which places have no terminator before them, bool [B, m].

  The accuracy of Ruoss et al. 2023 (arXiv 2305.16843) counts these places; the
  loss also counts the zeros after the terminator.
  """
  ended_BxM = outputs_BxM == TERMINATOR
  return np.cumsum(ended_BxM, axis=1) - ended_BxM == 0
