"""Profiles a range of training steps, for XProf or TensorBoard."""

from typing import Any

import jax
from etils import epath

from dape_jax.errors import ConfigError


def check_profile_steps(
    steps: tuple[int, int] | None, done: int, total: int
) -> None:
  """Checks that this run trains the steps to profile.

  Args:
    steps: first and last step to profile, or None.
    done: steps completed before this run.
    total: last step of the run.

  Raises:
    ConfigError: it does not train all of them.
  """
  if steps and not (done < steps[0] and steps[1] <= total):
    raise ConfigError(
        f"--profile_steps={steps[0]},{steps[1]}: this run trains steps"
        f" {done + 1} to {total}; choose from them."
    )


class ProfileWindow:
  """Profiles a range of steps; a context manager that stops the profiler.

  Attributes:
    folder: output folder.
  """

  def __init__(self, folder: epath.Path, steps: tuple[int, int] | None):
    """Sets the first and last step to profile; None profiles nothing."""
    self.folder = folder
    self._first, self._last = steps or (None, None)
    self._is_running = False

  def __enter__(self) -> "ProfileWindow":
    return self

  def __exit__(self, *_) -> None:
    if self._is_running:
      self._is_running = False
      jax.profiler.stop_trace()

  def before(self, step: int) -> None:
    """Starts the profiler if `step` is the first to profile."""
    if step == self._first:
      self._is_running = True
      jax.profiler.start_trace(self.folder)

  def after(self, step: int, outputs: Any) -> bool:
    """Stops the profiler after the last step; returns whether it did."""
    if not self._is_running or step < self._last:
      return False
    jax.block_until_ready(outputs)
    self.__exit__()
    return True
