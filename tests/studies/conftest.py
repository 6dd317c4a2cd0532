"""The command `python -m dape_jax.studies.tasks`, in one process for all tests."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
# Runs commands that it reads, JAX started once.
_DRIVER = """
import contextlib, io, json, sys
from absl.testing import flagsaver
from dape_jax import cli
from dape_jax.studies import tasks

for line in sys.stdin:
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
      with flagsaver.flagsaver():
        cli.run(tasks.main, ["tasks.py", *json.loads(line)])
    except SystemExit as exit_:
      status = exit_.code or 0
  reply = json.dumps([status, out.getvalue(), err.getvalue()])
  print(reply, file=sys.__stdout__, flush=True)
"""


@pytest.fixture(scope="session")
def tasks_command():
  """Returns a function: flags of the command for grids -> status, stdout, stderr.

  In a process of its own, because its flags have names of eval.py's.
  """
  environment = os.environ | {
      "JAX_PLATFORMS": "cpu",
      "XLA_FLAGS": "--xla_backend_optimization_level=0",
  }
  with subprocess.Popen(
      [sys.executable, "-c", _DRIVER],
      cwd=_ROOT,
      env=environment,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
  ) as process:

    def call(*flags):
      process.stdin.write(json.dumps(flags) + "\n")
      process.stdin.flush()
      return tuple(json.loads(process.stdout.readline()))

    yield call
    process.stdin.close()
