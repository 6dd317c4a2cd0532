"""Training batches of generated tasks, indexed by step."""

from collections.abc import Sequence

import numpy as np

from dape_jax.data.batches import Batches
from dape_jax.data.tasks import Examples, make
from dape_jax.errors import ConfigError


def padded_rows(examples: Examples, row_length: int) -> dict[str, np.ndarray]:
  """Returns model inputs and targets, padded to `row_length` tokens.

  Args:
    examples: rows of at most `row_length` tokens.
    row_length: T.

  Returns:
    Arrays [B, T]: inputs, targets, segment_ids (1; 0 is padding), positions,
    all int32, and loss_weights float32.
  """
  batch_size, used = examples.tokens.shape
  padding = ((0, 0), (0, row_length - used))
  pad = lambda x: np.pad(x, padding)
  steps = np.arange(row_length, dtype=np.int32)
  shape = (batch_size, row_length)
  return {
      "inputs": pad(examples.tokens),
      "targets": pad(examples.targets),
      "segment_ids": np.broadcast_to(np.int32(steps < used), shape),
      "positions": np.broadcast_to(np.where(steps < used, steps, 0), shape),
      "loss_weights": pad(examples.trained.astype(np.float32)),
  }


class TaskBatches(Batches):
  """Batches of a generated task; see `Batches`.

  Lengths are uniform in min_length..length. Rows are padded to the longest
  problems, so all batches have the same shape.

  Attributes:
    num_windows: nominal number of rows before any repeats; unlimited.
  """

  num_windows = 2**31

  def __init__(
      self,
      task: str,
      *,
      length: int,
      batch_size: int,
      seed: int,
      lengths_per_batch: int = 1,
  ):
    """Initializes; generates nothing.

    Args:
      task: name of the task.
      length: length of the longest problems.
      batch_size: rows per step.
      seed: seed of the problems.
      lengths_per_batch: number of lengths drawn per batch, each for an equal
        share of its rows; a divisor of batch_size.

    Raises:
      ConfigError: the task is unknown, or batch_size is not a positive multiple
        of lengths_per_batch.
    """
    if lengths_per_batch < 1 or batch_size % lengths_per_batch:
      raise ConfigError(
          f"config.data.lengths_per_batch={lengths_per_batch}: must divide"
          f" config.train.batch_size={batch_size}."
      )
    state = {
        "seed": seed,
        "batch_size": batch_size,
        "length": length,
        "lengths_per_batch": lengths_per_batch,
        "task": task,
    }
    self._task = make(task)
    super().__init__(state, self._task.row_length(length))

  def _rows(self, step: int, rows: Sequence[int]) -> dict[str, np.ndarray]:
    state = self._state
    rng = np.random.default_rng([state["seed"], step])
    limits = self._task.min_length, state["length"]
    count = state["lengths_per_batch"]
    parts = [
        padded_rows(
            self._task.sample(rng, int(length), self.batch_size // count),
            self.row_length,
        )
        for length in rng.integers(*limits, size=count, endpoint=True)
    ]
    return {
        name: np.concatenate([part[name] for part in parts])[list(rows)]
        for name in parts[0]
    }
