"""The command `python -m dape_jax.studies.tasks`, in one process for all tests."""

import pytest
from command_process import command_process


@pytest.fixture(scope="session")
def tasks_command():
  """Returns a function: flags of the command -> status, stdout, stderr."""
  with command_process(
      "tasks.py",
      "dape_jax.studies.tasks",
      {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
  ) as call:
    yield call
