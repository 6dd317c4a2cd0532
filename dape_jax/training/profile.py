"""A profile of some steps of a run, for XProf or TensorBoard."""

from typing import Any

import jax
from etils import epath

from dape_jax.errors import ConfigError


def check_profile_steps(
    steps: tuple[int, int] | None, done: int, total: int
) -> None:
  """Checks that a run makes the steps that are to be profiled.

  Args:
    steps: first and last of them, or None.
    done: steps before this run.
    total: steps of the whole run.

  Raises:
    ConfigError: it does not make all of them.
  """
  if steps and not (done < steps[0] and steps[1] <= total):
    raise ConfigError(
        f"--profile_steps={steps[0]},{steps[1]}: this run makes the steps"
        f" {done + 1} to {total}; choose from them."
    )


class ProfileWindow:
  """Profiles from one step to another; a context manager that ends it.

  Attributes:
    folder: where the profile goes.
  """

  def __init__(self, folder: epath.Path, steps: tuple[int, int] | None):
    """Initialises.

    Args:
      folder: where the profile goes.
      steps: first and last step; None profiles none.
    """
    self.folder = folder
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
      jax.profiler.start_trace(self.folder)

  def after(self, step: int, outputs: Any) -> bool:
    """Ends if `step` is the last one, when its outputs are there.

    Returns:
      Whether it ended.
    """
    if not self._running or step < self._last:
      return False
    jax.block_until_ready(outputs)
    self.__exit__()
    return True
