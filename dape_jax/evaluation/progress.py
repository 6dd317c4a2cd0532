"""Progress of an evaluation, on stderr."""

import sys
import time

import tqdm


class Progress:
  """Counts processed tokens: a bar on a terminal, otherwise periodic lines."""

  _SECONDS_BETWEEN_LINES = 30

  def __init__(self, total: int, label: str):
    self._label = label
    self._last_line = time.monotonic()
    self._on_terminal = sys.stderr.isatty()
    self._bar = tqdm.tqdm(
        total=total,
        desc=label,
        unit="tok",
        unit_scale=True,
        disable=not self._on_terminal,
    )
    self._done, self._total = 0, total

  def advance(self, tokens: int) -> None:
    self._bar.update(tokens)
    self._done += tokens
    now = time.monotonic()
    due = now - self._last_line > self._SECONDS_BETWEEN_LINES
    if due and not self._on_terminal:
      self.line(f"{self._done:,} of {self._total:,} tokens processed")

  def line(self, text: str) -> None:
    tqdm.tqdm.write(f"{self._label}: {text}", file=sys.stderr)
    self._last_line = time.monotonic()

  def close(self) -> None:
    self._bar.close()
