"""Generated tasks by name, with exact answers at any length."""

from dape_jax.data.tasks import (
    context_free,
    context_sensitive,
    needle,
    recall,
    regular,
)
from dape_jax.data.tasks.task import Examples, Task
from dape_jax.errors import ConfigError, did_you_mean

# The 15 tasks of Deletang et al. 2023 (arXiv 2207.02098), in their order.
CHE_TASKS = regular.TASKS | context_free.TASKS | context_sensitive.TASKS
TASKS = CHE_TASKS | recall.TASKS | needle.TASKS


def make(name: str) -> Task:
  """Returns the task called `name`.

  Raises:
    ConfigError: the name is unknown; suggests the nearest valid one.
  """
  if name not in TASKS:
    raise ConfigError(f"task {name!r} is unknown.{did_you_mean(name, TASKS)}")
  return TASKS[name]


__all__ = [
    "CHE_TASKS",
    "TASKS",
    "Examples",
    "Task",
    "make",
]
