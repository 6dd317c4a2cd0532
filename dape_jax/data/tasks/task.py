"""The interface of generated tasks, and transduction tasks on strings."""

import abc
import dataclasses
import functools
from collections.abc import Callable

import numpy as np

# Ends an answer that is shorter than its places; zeros follow.
TERMINATOR = 2


@dataclasses.dataclass(frozen=True)
class Examples:
  """A batch of generated rows.

  Attributes:
    tokens: int32 [B, T].
    targets: int32 [B, T], the expected answer at each place; arbitrary where
      none is expected.
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
    chance: accuracy of the best constant answer on long problems, to report
      with results.
    chance_by_place: accuracy of the best answer given length and place but not
      the input, if far above `chance`; else None.
    min_length: smallest length of a problem.
    variants: other tasks with the same ids, on which models trained on this one
      are also evaluated.
  """

  vocab_size: int
  num_outputs: int
  chance: float
  chance_by_place: float | None = None
  min_length: int = 1
  variants: tuple[str, ...] = ()

  @abc.abstractmethod
  def row_length(self, length: int) -> int:
    """Returns T, the number of tokens in a row for problems of this length."""

  @abc.abstractmethod
  def sample(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> Examples:
    """Returns problems of one length, a pure function of the state of `rng`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransductionTask(Task):
  """Problems with an input and an output, answered at placeholders.

  A row is the input followed by one placeholder, token id `num_inputs`, per
  output token (Ruoss et al. 2023, arXiv 2305.16843). Answers are not fed back,
  so all are given at once. Encoders and causal decoders process the same row.

  Attributes:
    num_inputs: number of input ids.
    inputs: returns random inputs [B, n] of (rng, length, batch_size); by
      default independent and uniform over the input ids.
    outputs_of: returns the outputs [B, m] of inputs [B, n], all integers.
    input_length: returns the number of input tokens for problems of a length.
    output_length: returns the number of output tokens.
    is_terminated: whether only the outputs up to and including the terminator
      are scored, as in Ruoss et al. The loss counts all outputs.
  """

  num_inputs: int
  num_outputs: int
  chance: float
  chance_by_place: float | None = None
  inputs: Callable[[np.random.Generator, int, int], np.ndarray] | None = None
  outputs_of: Callable[[np.ndarray], np.ndarray] | None = None
  input_length: Callable[[int], int] = lambda length: length
  output_length: Callable[[int], int] = lambda length: 1
  is_terminated: bool = False

  @property
  def vocab_size(self) -> int:
    return self.num_inputs + 1

  def problems(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs [B, n] and outputs [B, m] of any integer dtype."""
    if self.inputs is None:
      inputs_BxN = rng.integers(self.num_inputs, size=(batch_size, length))
    else:
      inputs_BxN = self.inputs(rng, length, batch_size)
    return inputs_BxN, self.outputs_of(inputs_BxN)

  def row_length(self, length: int) -> int:
    return self.input_length(length) + self.output_length(length)

  def sample(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> Examples:
    inputs, outputs = self.problems(rng, length, batch_size)
    everywhere = np.ones(outputs.shape, bool)
    scored = everywhere
    if self.is_terminated:
      ended = outputs == TERMINATOR
      scored = np.cumsum(ended, axis=1) - ended == 0
    row = lambda left, right: np.concatenate([left, right], axis=1)
    nowhere = np.zeros(inputs.shape, bool)
    return Examples(
        tokens=np.int32(row(inputs, np.full(outputs.shape, self.num_inputs))),
        targets=np.int32(row(0 * inputs, outputs)),
        trained=row(nowhere, everywhere),
        scored=row(nowhere, scored),
    )


bit_string_task = functools.partial(
    TransductionTask, num_inputs=2, num_outputs=2, chance=0.5
)


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
