"""Runs commands in one process for many tests: JAX starts once.

In a process of its own, because commands define flags of equal names.
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

mains = {}
for word in sys.argv[1:]:
  script, _, module = word.partition("=")
  mains[script] = importlib.import_module(module).main
for line in sys.stdin:
  argv = json.loads(line)
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
      with flagsaver.flagsaver():
        cli.run(mains[argv[0]], argv)
    except SystemExit as exit_:
      status = exit_.code or 0
  reply = json.dumps([status, out.getvalue(), err.getvalue()])
  print(reply, file=sys.__stdout__, flush=True)
"""


@contextlib.contextmanager
def command_process(**modules):
  """Yields a function: script, flags -> status, stdout, stderr.

  Args:
    **modules: script -> the module whose `main` it calls.
  """
  path = os.pathsep.join([str(_ROOT), *sys.path])
  with subprocess.Popen(
      [sys.executable, "-c", _DRIVER]
      + [f"{script}={module}" for script, module in modules.items()],
      cwd=_ROOT,
      env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path},
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
  ) as process:

    def call(script, *flags):
      process.stdin.write(json.dumps([script, *flags]) + "\n")
      process.stdin.flush()
      return tuple(json.loads(process.stdout.readline()))

    yield call
    process.stdin.close()
