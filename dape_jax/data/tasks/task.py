"""What a generated task is: rows of tokens, and what to answer where."""

import abc
import dataclasses
from typing import ClassVar

import numpy as np


@dataclasses.dataclass(frozen=True)
class Examples:
  """A batch of generated rows.

  Attributes:
    tokens: int32 [B, T].
    targets: int32 [B, T], the answer that is wanted at each place; any id where
      none is.
    trained: bool [B, T], places whose answers make the loss.
    scored: bool [B, T], places whose answers make the accuracy.
  """

  tokens: np.ndarray
  targets: np.ndarray
  trained: np.ndarray
  scored: np.ndarray


class Task(abc.ABC):
  """A family of problems that can be generated at any length.

  Attributes:
    vocab_size: token ids are below it.
    num_outputs: target ids are below it.
    chance: accuracy of the best constant answer on long problems, to be stated
      beside results.
    chance_by_place: that of the best answer which knows the length and the place
      but not the input, where it is far above `chance`; else None.
    min_length: of problems.
    variants: names of other tasks of the same ids, on which a model of this one
      is scored too.
  """

  vocab_size: ClassVar[int]
  num_outputs: ClassVar[int]
  chance: ClassVar[float]
  chance_by_place: ClassVar[float | None] = None
  min_length: ClassVar[int] = 1
  variants: ClassVar[tuple[str, ...]] = ()

  @abc.abstractmethod
  def row_length(self, length: int) -> int:
    """Returns T, how many tokens a row of problems of this length has."""

  @abc.abstractmethod
  def sample(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> Examples:
    """Returns problems of one length, a pure function of the state of `rng`."""


class TransductionTask(Task):
  """Problems with an input and an output, answered at placeholders.

  A row is the input and then one placeholder, token id `num_inputs`, for each
  output token (Ruoss et al. 2023, arXiv 2305.16843); nothing is fed back, so
  all answers are given at once. Encoders and causal decoders read the same row.

  Attributes:
    num_inputs: input ids are below it.
  """

  num_inputs: ClassVar[int]

  @property
  def vocab_size(self) -> int:
    return self.num_inputs + 1

  def input_length(self, length: int) -> int:
    """Returns how many input tokens problems of this length have."""
    return length

  @abc.abstractmethod
  def output_length(self, length: int) -> int:
    """Returns how many output tokens problems of this length have."""

  @abc.abstractmethod
  def problems(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs [B, n] and outputs [B, m], integers of any kind."""

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
