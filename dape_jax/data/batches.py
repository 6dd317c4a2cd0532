"""Training batches indexed by step, so a run resumes from one integer."""

import abc
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dape_jax.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
  from dape_jax.data.corpus import Split

PACKINGS = ("segments", "plain")
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
  """Endless batches; each row is a pure function of (seed, step, row).

  Each process requests only its own rows, so a run resumes with the same
  batches on any number of devices and processes.

  Attributes:
    batch_size: B, rows per batch.
    row_length: T, tokens per row.
  """

  def __init__(self, state: Mapping[str, Any], row_length: int):
    """Initializes.

    Args:
      state: JSON values that determine the batches, among them "batch_size".
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
    """Returns the complete batch of a step; see `rows`."""
    return self.rows(step, range(self.batch_size))

  def rows(self, step: int, rows: Sequence[int]) -> dict[str, np.ndarray]:
    """Returns rows of the batch of an optimizer step.

    Args:
      step: optimizer step, from 0 and unbounded.
      rows: indices in 0..batch_size - 1.

    Returns:
      Arrays [rows, T]: inputs, targets, segment_ids (from 1; 0 is padding),
      positions, all int32, and loss_weights float32.
    """
    if step < 0:
      raise IndexError(f"step={step} must not be negative.")
    return self._rows(int(step), rows)

  @abc.abstractmethod
  def _rows(self, step: int, rows: Sequence[int]) -> dict[str, np.ndarray]:
    """Implements `rows`."""

  def data_state(self, step: int) -> dict[str, Any]:
    """Returns the JSON-serializable state to checkpoint at `step`."""
    return {"step": int(step), **self._state}

  def check_state(self, state: Mapping[str, Any]) -> None:
    """Checks that these batches continue those of a checkpoint.

    Args:
      state: result of `data_state` at any step.

    Raises:
      ConfigError: the data differ; names the first field that does.
    """
    for name, value in self._state.items():
      if name not in state:
        raise ConfigError(
            f"The checkpoint's data state has no {name!r}, so the run cannot"
            " resume: start in a new workdir."
        )
      if state[name] != value:
        fix = (
            "use the corpus it was trained on (the text of a built-in corpus"
            " depends on package versions), or start in a new workdir."
            if name == "fingerprint"
            else "set it back, or start in a new workdir."
        )
        raise ConfigError(
            f"{_STATE_FIELDS[name]} is {value!r} but {state[name]!r} in the"
            f" checkpoint, so the run cannot resume: {fix}"
        )


class Windows:
  """Random access to the windows of a split.

  Window i is tokens i*length to (i+1)*length, inclusive: inputs are all but the
  last, targets all but the first. So every token of the split is a target once,
  except the first token and fewer than `length` tokens after the last complete
  window.
  """

  def __init__(self, split: "Split", length: int, packing: str):
    """Checks that the split has at least one window.

    Args:
      split: tokens and document starts.
      length: T, inputs per window.
      packing: "segments": each document is its own segment with positions from
        0, and targets that begin a document have no loss.
        "plain": the window is one segment and every target counts.

    Raises:
      ConfigError: packing is unknown, length is below 1, or the split is too
        short.
    """
    if packing not in PACKINGS:
      raise ConfigError(
          f"config.data.packing={packing!r} is unknown."
          f"{did_you_mean(packing, PACKINGS)}"
      )
    if length < 1:
      raise ConfigError(f"config.data.length={length}: must be greater than 0.")
    self._split = split
    self._length = length
    self._packing = packing
    if len(self) < 1:
      raise ConfigError(
          f"config.data.length={length}: the {split.split_name} split has only"
          f" {split.tokens.size} tokens but one window needs {length + 1};"
          " choose a smaller length."
      )

  def __len__(self) -> int:
    return max(0, (self._split.tokens.size - 1) // self._length)

  def __getitem__(self, index: int) -> dict[str, np.ndarray]:
    """Returns one window as arrays [T]; see `rows`."""
    return {name: values[0] for name, values in self.rows([index]).items()}

  def rows(self, indices: Sequence[int]) -> dict[str, np.ndarray]:
    """Returns inputs, targets, segment_ids, positions and loss_weights.

    Positions count the context visible to the model, so a document cut by the
    beginning of a window restarts at 0.

    Args:
      indices: window indices.

    Returns:
      Arrays [rows, T], int32 and loss_weights float32.
    """
    length = self._length
    begins = [int(index) * length for index in indices]
    tokens = self._split.tokens.rows(begins, length + 1).astype(np.int32)
    is_start = np.zeros(tokens.shape, np.int32)
    if self._packing == "segments":
      starts = self._split.starts
      # A row begins with a segment anyway.
      firsts = np.searchsorted(starts, begins, side="right")
      lasts = np.searchsorted(starts, np.add(begins, length), side="right")
      for row, begin, first, last in zip(is_start, begins, firsts, lasts):
        row[starts[first:last] - begin] = 1
    steps = np.arange(length, dtype=np.int32)
    starts_at = np.where(is_start[:, :-1], steps, 0)
    return {
        "inputs": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "segment_ids": 1 + np.cumsum(is_start[:, :-1], axis=1, dtype=np.int32),
        "positions": steps - np.maximum.accumulate(starts_at, axis=1),
        "loss_weights": (1 - is_start[:, 1:]).astype(np.float32),
    }


class TrainBatches(Batches):
  """Batches of text; see `Batches`.

  Windows of a split are reshuffled every epoch; a batch may span two epochs.
  Several splits are interleaved evenly in the proportion of the weights, each
  with its own order and epochs.

  Attributes:
    num_windows: number of rows before any repeats.
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
      split: split of a corpus, or one split from each of several corpora.
      length: T, tokens per window.
      batch_size: windows per step.
      seed: shuffle seed, in [0, 2**32).
      packing: "segments" or "plain" (see `Windows`).
      weights: one weight for each of several splits; need not sum to 1.

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
    # Indices run over the windows of all splits, so they identify the split.
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
  """Checks the weights of the sources.

  Raises:
    ConfigError: the number of weights is wrong, or one is not positive.
  """
  needed = sources if sources > 1 else 0
  if len(weights) != needed:
    raise ConfigError(
        f"config.data.weights={tuple(weights)}: must be {needed} numbers, one per"
        " source if config.data.source has several, else none."
    )
  if not all(math.isfinite(weight) and weight > 0 for weight in weights):
    raise ConfigError(
        f"config.data.weights={tuple(weights)}: must be greater than 0."
    )
