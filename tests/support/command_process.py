"""Runs commands in one process for many tests, so that JAX starts only once.

The process is separate because absl's flags are global: two commands may define
the same flag.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

_ROOT = pathlib.Path(__file__).parents[2]
_DRIVER = """
import contextlib, importlib, io, json, sys
from absl.testing import flagsaver
from dape_jax import cli

script, module = sys.argv[1:]
main = importlib.import_module(module).main
for line in sys.stdin:
  out, err = io.StringIO(), io.StringIO()
  sys.argv = [script, *json.loads(line)]
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
      with flagsaver.flagsaver():
        cli.run(main)
    except SystemExit as exit_:
      status = exit_.code or 0
  reply = json.dumps([status, out.getvalue(), err.getvalue()])
  print(reply, file=sys.__stdout__, flush=True)
"""


@contextlib.contextmanager
def command_process(script, module, environment=None):
  """Yields a function: flags -> exit status, stdout and stderr.

  Args:
    script: name of the command in its error messages.
    module: imported module with the function `main`.
    environment: changes to the environment.
  """
  path = os.pathsep.join([str(_ROOT), *sys.path])
  with subprocess.Popen(
      [sys.executable, "-c", _DRIVER, script, module],
      cwd=_ROOT,
      env=os.environ
      | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
      | (environment or {}),
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
