"""A profile of some steps of a run, for XProf or TensorBoard."""

from typing import Any

import jax
from etils import epath


class ProfileWindow:
  """Profiles from one step to another; a context manager that ends it."""

  def __init__(self, folder: epath.Path, steps: tuple[int, int] | None):
    """Initialises.

    Args:
      folder: where the profile goes.
      steps: first and last step; None profiles none.
    """
    self._folder = folder
    self._first, self._last = steps or (None, None)
    self._running = False

  def __enter__(self) -> "ProfileWindow":
    return self

  def __exit__(self, *_) -> None:
    if self._running:
      self._running = False
      jax.profiler.stop_trace()

  def before(self, step: int) -> None:
    """Begins if `step` is the first one."""
    if step == self._first:
      self._running = True
      jax.profiler.start_trace(self._folder)

  def after(self, step: int, outputs: Any) -> None:
    """Ends if `step` is the last one, when its outputs are there."""
    if self._running and step >= self._last:
      jax.block_until_ready(outputs)
      self.__exit__()
