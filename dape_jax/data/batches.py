"""Training batches addressed by step, so that resuming needs one integer."""

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dape_jax.data.windows import Windows
from dape_jax.errors import ConfigError

if TYPE_CHECKING:
  from dape_jax.data.corpus import Split

_STATE_FIELDS = {
    "seed": "config.seed",
    "batch_size": "config.train.batch_size",
    "length": "config.data.length",
    "packing": "config.data.packing",
    "task": "config.data.task",
    "lengths_per_batch": "config.data.lengths_per_batch",
    "fingerprint": "the corpus fingerprint",
}


class Batches(abc.ABC):
  """An endless sequence of batches, each a pure function of (seed, step).

  Process i of n gets rows i, i+n, ... of the batch that a single process would
  get, so a run continues with the same data on any number of processes.
  """

  def __init__(
      self, state: Mapping[str, Any], process_index: int, process_count: int
  ):
    """Initialises.

    Args:
      state: what determines the batches, of what JSON has: "batch_size", rows
        per step over all processes, and more.
      process_index: which rows this process gets.
      process_count: over how many processes a batch is divided.

    Raises:
      ConfigError: batch_size is not a multiple of process_count.
    """
    batch_size = state["batch_size"]
    if not 0 <= process_index < process_count:
      raise ValueError(
          f"process_index={process_index} is not in [0, {process_count})."
      )
    if batch_size < 1 or batch_size % process_count:
      raise ConfigError(
          f"config.train.batch_size={batch_size}: must be a positive multiple"
          f" of the number of processes, {process_count}."
      )
    self._state = dict(state)
    self._rows = slice(process_index, None, process_count)

  def __getitem__(self, step: int) -> dict[str, np.ndarray]:
    """Returns this process's rows of the batch of optimizer step `step`.

    Args:
      step: counted from 0, without an end.

    Returns:
      Arrays [batch_size / process_count, T]: inputs, targets, segment_ids
      (from 1; 0 is padding), positions, all int32, and loss_weights float32.
    """
    if step < 0:
      raise IndexError(f"step={step} must not be negative.")
    return self._batch(int(step))

  @abc.abstractmethod
  def _batch(self, step: int) -> dict[str, np.ndarray]:
    """Returns the rows of a step from 0."""

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
    for name, value in self._state.items():
      if name not in state:
        raise ConfigError(
            f"The checkpoint's data state has no {name!r}; it cannot be"
            " continued: start in a new workdir."
        )
      if state[name] != value:
        fix = (
            "install the packages it was made from, or start in a new workdir."
            if name == "fingerprint"
            else "set it back, or start in a new workdir."
        )
        raise ConfigError(
            f"{_STATE_FIELDS[name]} is {value!r} but {state[name]!r} in the"
            f" checkpoint, whose data it therefore cannot continue: {fix}"
        )


class TrainBatches(Batches):
  """Batches of text, see `Batches`.

  The windows of the split are shuffled anew every epoch; a batch may end one
  epoch and begin the next.

  Attributes:
    num_windows: windows of an epoch.
  """

  def __init__(
      self,
      split: "Split",
      *,
      length: int,
      batch_size: int,
      seed: int,
      packing: str = "segments",
      process_index: int = 0,
      process_count: int = 1,
  ):
    """Builds the index; reads no data.

    Args:
      split: of a corpus.
      length: T, tokens per window.
      batch_size: windows per step over all processes.
      seed: of the shuffle, in [0, 2**32).
      packing: "segments" or "plain" (see `Windows`).
      process_index: which rows this process gets.
      process_count: over how many processes a batch is divided.

    Raises:
      ConfigError: batch_size is not a multiple of process_count, the split is
        shorter than a window, or the seed is out of range.
    """
    import grain  # takes a second and imports jax

    if not 0 <= seed < 2**32:
      raise ConfigError(f"config.seed={seed}: must be in [0, 2**32).")
    state = {
        "seed": seed,
        "batch_size": batch_size,
        "length": length,
        "packing": packing,
        "fingerprint": split.fingerprint,
    }
    super().__init__(state, process_index, process_count)
    windows = Windows(split, length, packing)
    self.num_windows = len(windows)
    dataset = grain.MapDataset.source(windows)
    dataset = dataset.seed(seed).shuffle().repeat()
    dataset = dataset[self._rows]
    self._batches = dataset.batch(batch_size // process_count)

  def _batch(self, step: int) -> dict[str, np.ndarray]:
    return self._batches[step]
