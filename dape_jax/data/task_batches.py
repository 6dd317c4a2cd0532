"""Training batches of generated tasks, addressed by step as those of text."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dape_jax.data.batches import check_same_state
from dape_jax.data.tasks import Examples, Task, make
from dape_jax.errors import ConfigError


def padded_rows(examples: Examples, row_length: int) -> dict[str, np.ndarray]:
  """Returns what a model reads and answers, with rows of `row_length` tokens.

  Args:
    examples: with rows of at most as many.
    row_length: T.

  Returns:
    Arrays [B, T]: inputs, targets, segment_ids (1; 0 is padding), positions, all
    int32, and loss_weights float32.
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


class TaskBatches:
  """An endless sequence of batches, each a pure function of (seed, step).

  The problems of a batch have one length, uniform in min_length..length. Rows are padded
  to those of the longest problems, so that all batches have one shape. Process i
  of n gets rows i, i+n, ... of the batch that a single process would get.

  Attributes:
    num_windows: rows before any comes again; there is no end.
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
      process_index: int = 0,
      process_count: int = 1,
  ):
    """Draws nothing yet.

    Args:
      task: name of the task.
      length: of the longest problems.
      batch_size: rows per step over all processes.
      seed: of the problems; other batches than those of any other seed.
      lengths_per_batch: lengths drawn for a batch, each for an equal part of its
        rows; a divisor of batch_size.
      process_index: which rows this process gets.
      process_count: over how many processes a batch is divided.

    Raises:
      ConfigError: unknown task, or batch_size is not a multiple of
        process_count and of lengths_per_batch.
    """
    if not 0 <= process_index < process_count:
      raise ValueError(
          f"process_index={process_index} is not in [0, {process_count})."
      )
    if batch_size < 1 or batch_size % process_count:
      raise ConfigError(
          f"config.train.batch_size={batch_size}: must be a positive multiple"
          f" of the number of processes, {process_count}."
      )
    if lengths_per_batch < 1 or batch_size % lengths_per_batch:
      raise ConfigError(
          f"config.data.lengths_per_batch={lengths_per_batch}: must divide"
          f" config.train.batch_size={batch_size}."
      )
    self._task: Task = make(task)
    self._row_length = self._task.row_length(length)
    self._rows = slice(process_index, None, process_count)
    self._state = {
        "seed": seed,
        "batch_size": batch_size,
        "length": length,
        "lengths_per_batch": lengths_per_batch,
        "task": task,
    }

  def __getitem__(self, step: int) -> dict[str, np.ndarray]:
    """Returns this process's rows of the batch of optimizer step `step`.

    Args:
      step: counted from 0, without an end.

    Returns:
      See `padded_rows`.
    """
    if step < 0:
      raise IndexError(f"step={step} must not be negative.")
    state = self._state
    rng = np.random.default_rng([state["seed"], step])
    limits = self._task.min_length, state["length"]
    count = state["lengths_per_batch"]
    parts = [
        padded_rows(
            self._task.sample(rng, int(length), state["batch_size"] // count),
            self._row_length,
        )
        for length in rng.integers(*limits, size=count, endpoint=True)
    ]
    rows = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    return {name: values[self._rows] for name, values in rows.items()}

  def data_state(self, step: int) -> dict[str, Any]:
    """Returns what a checkpoint at `step` must keep, JSON-serialisable."""
    return {"step": int(step), **self._state}

  def check_state(self, state: Mapping[str, Any]) -> None:
    """Checks that these batches continue those of a checkpoint.

    Args:
      state: what `data_state` returned then. Its step may be any.

    Raises:
      ConfigError: the data differ; names the first field that does.
    """
    check_same_state(self._state, state)
