"""Training batches addressed by step, so that resuming needs one integer."""

import abc
import itertools
import math
from collections.abc import Mapping, Sequence
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
    "weights": "config.data.weights",
    "fingerprint": "the corpus fingerprint",
}


class Batches(abc.ABC):
  """An endless sequence of batches, each row a pure function of (seed, step, row).

  Whoever needs some rows of a batch asks for those, so a run continues with the
  same batches on any number of devices and processes.

  Attributes:
    batch_size: rows B of a batch.
    row_length: tokens T of a row.
  """

  def __init__(self, state: Mapping[str, Any], row_length: int):
    """Initialises.

    Args:
      state: what determines the batches, of what JSON has: "batch_size", rows
        per step, and more.
      row_length: T.

    Raises:
      ConfigError: batch_size is below 1.
    """
    self.batch_size = state["batch_size"]
    self.row_length = row_length
    self._state = dict(state)
    if self.batch_size < 1:
      raise ConfigError(
          f"config.train.batch_size={self.batch_size}: must be greater than 0."
      )

  def __getitem__(self, step: int) -> dict[str, np.ndarray]:
    """Returns all rows of the batch of a step, see `rows`."""
    return self.rows(step, range(self.batch_size))

  def rows(self, step: int, rows: Sequence[int]) -> dict[str, np.ndarray]:
    """Returns rows of the batch of an optimizer step.

    Args:
      step: counted from 0, without an end.
      rows: which ones, of 0..batch_size - 1.

    Returns:
      Arrays [rows, T]: inputs, targets, segment_ids (from 1; 0 is padding),
      positions, all int32, and loss_weights float32.
    """
    if step < 0:
      raise IndexError(f"step={step} must not be negative.")
    return self._rows(int(step), rows)

  @abc.abstractmethod
  def _rows(self, step: int, rows: Sequence[int]) -> dict[str, np.ndarray]:
    """Returns what `rows` does."""

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
            "give the corpus that it was trained on (a built-in one has other"
            " text with other versions of its packages), or start in a new"
            " workdir."
            if name == "fingerprint"
            else "set it back, or start in a new workdir."
        )
        raise ConfigError(
            f"{_STATE_FIELDS[name]} is {value!r} but {state[name]!r} in the"
            f" checkpoint, whose data it therefore cannot continue: {fix}"
        )


class TrainBatches(Batches):
  """Batches of text, see `Batches`.

  The windows of a split are shuffled anew every epoch; a batch may end one epoch
  and begin the next. Rows of several splits are mixed in the proportion of the
  weights, as evenly as can be, each split in its own order and epochs.

  Attributes:
    num_windows: rows before any comes again.
  """

  def __init__(
      self,
      split: "Split | Sequence[Split]",
      *,
      length: int,
      batch_size: int,
      seed: int,
      packing: str = "segments",
      weights: Sequence[float] = (),
  ):
    """Builds the index; reads no data.

    Args:
      split: of a corpus; or one of each of several corpora.
      length: T, tokens per window.
      batch_size: windows per step.
      seed: of the shuffle, in [0, 2**32).
      packing: "segments" or "plain" (see `Windows`).
      weights: of several splits, one each; they need not add up to 1.

    Raises:
      ConfigError: a split is shorter than a window, or a number is out of
        range.
    """
    import grain  # takes a second and imports jax

    if not 0 <= seed < 2**32:
      raise ConfigError(f"config.seed={seed}: must be in [0, 2**32).")
    splits = split if isinstance(split, Sequence) else [split]
    check_weights(weights, len(splits))
    state = {
        "seed": seed,
        "batch_size": batch_size,
        "length": length,
        "packing": packing,
        "fingerprint": ",".join(split.fingerprint for split in splits),
    }
    if weights:
      state["weights"] = list(weights)
    super().__init__(state, length)
    self._windows = [Windows(split, length, packing) for split in splits]
    # Windows of all splits are counted on, so that an index says its split.
    self._firsts = np.cumsum([0, *map(len, self._windows)])
    indices = [
        grain.MapDataset.range(int(first), int(end))
        for first, end in itertools.pairwise(self._firsts)
    ]
    endless = [one.seed(seed).shuffle().repeat() for one in indices]
    if weights:
      self._indices = grain.MapDataset.mix(endless, weights)
      self.num_windows = len(grain.MapDataset.mix(indices, weights))
    else:
      (self._indices,) = endless
      self.num_windows = len(indices[0])

  def _rows(self, step: int, rows: Sequence[int]) -> dict[str, np.ndarray]:
    first = step * self.batch_size
    indices = np.array([self._indices[first + row] for row in rows], np.int64)
    splits = np.searchsorted(self._firsts, indices, side="right") - 1
    batch: dict[str, np.ndarray] = {}
    for split in np.unique(splits):
      here = splits == split
      part = self._windows[split].rows(indices[here] - self._firsts[split])
      for name, values in part.items():
        shape = (len(indices), self.row_length)
        batch.setdefault(name, np.empty(shape, values.dtype))[here] = values
    return batch


def check_weights(weights: Sequence[float], sources: int) -> None:
  """Checks the weights of a number of sources.

  Raises:
    ConfigError: there are not as many, or one is not positive.
  """
  needed = sources if sources > 1 else 0
  if len(weights) != needed:
    raise ConfigError(
        f"config.data.weights={tuple(weights)}: must be {needed} numbers, one for"
        " each source where config.data.source has several."
    )
  if not all(math.isfinite(weight) and weight > 0 for weight in weights):
    raise ConfigError(
        f"config.data.weights={tuple(weights)}: must be greater than 0."
    )
