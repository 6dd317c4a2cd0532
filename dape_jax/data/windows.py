"""Training windows: fixed-length pieces of a split's token stream."""

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
    """Returns inputs, targets, segment_ids, positions (int32 [T]) and weights.

    A document cut by the window's beginning has position 0 there: positions
    count the context that the model sees.
    """
    length = self._length
    begin = index * length
    tokens = np.array(
        self._split.tokens[begin : begin + length + 1], dtype=np.int32
    )
    steps = np.arange(length, dtype=np.int32)
    is_start = np.zeros(length + 1, np.int32)
    if self._packing == "segments":
      first, last = np.searchsorted(
          self._split.starts, [begin, begin + length], side="right"
      )
      is_start[self._split.starts[first:last] - begin] = 1
    starts = np.where(is_start[:-1], steps, 0)
    return {
        "inputs": tokens[:-1],
        "targets": tokens[1:],
        "segment_ids": 1 + np.cumsum(is_start[:-1], dtype=np.int32),
        "positions": steps - np.maximum.accumulate(starts),
        "loss_weights": (1 - is_start[1:]).astype(np.float32),
    }
