"""What the string tasks of the Chomsky-hierarchy evaluation share."""

import abc

import numpy as np

from dape_jax.data.tasks.task import TransductionTask

# Ends an answer that may be shorter than its places; zeros follow.
TERMINATOR = 2


class FunctionTask(TransductionTask):
  """Problems whose outputs are a function of their inputs.

  Unless a task says otherwise, its inputs are uniform: each token is any of the
  `num_inputs`, independently.
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
  """Returns whether no terminator stands before a place, bool [B, m].

  The accuracy of Ruoss et al. 2023 (arXiv 2305.16843) counts these places,
  while its loss counts the zeros behind the terminator too.
  """
  ended_BxM = outputs_BxM == TERMINATOR
  return np.cumsum(ended_BxM, axis=1) - ended_BxM == 0
