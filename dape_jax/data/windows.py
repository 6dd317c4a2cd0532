"""Training windows: fixed-length pieces of a split's token stream."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dape_jax.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
  from dape_jax.data.corpus import Split

PACKINGS = ("segments", "plain")


class Windows:
  """Random access to the windows of a split.

  Window i is tokens i*length to (i+1)*length, both included: its inputs are all
  but the last and its targets all but the first. So every token of the split is
  a target once, except the very first token and the fewer than `length` tokens
  behind the last whole window.
  """

  def __init__(self, split: "Split", length: int, packing: str):
    """Checks that the split holds a window.

    Args:
      split: tokens and document starts.
      length: T, inputs per window.
      packing: "segments": each document is its own segment, positions restart
        at 0 with it, and the step from one document to the next has no loss.
        "plain": the window is one segment and every target counts.

    Raises:
      ConfigError: unknown packing, length below 1 or split too short.
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
          f" {split.tokens.size} tokens and one window takes {length + 1};"
          " choose a smaller length."
      )

  def __len__(self) -> int:
    return max(0, (self._split.tokens.size - 1) // self._length)

  def __getitem__(self, index: int) -> dict[str, np.ndarray]:
    """Returns one window, arrays [T]; see `rows`."""
    return {name: values[0] for name, values in self.rows([index]).items()}

  def rows(self, indices: Sequence[int]) -> dict[str, np.ndarray]:
    """Returns inputs, targets, segment_ids, positions and loss_weights.

    A document cut by a window's beginning has position 0 there: positions count
    the context that the model sees.

    Args:
      indices: of windows, read together.

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
