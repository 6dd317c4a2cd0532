"""The TPU compiler in tests: compiles programs without a TPU."""

import os
import pathlib
import subprocess
import sys

import pytest

from dape_jax.compiler import tpu as tpu_compiler

FOLDER = pathlib.Path(sys.prefix) / "libtpu"  # `make test` installs it there
ENVIRONMENT = {
    **tpu_compiler.ENVIRONMENT,
    "PYTHONPATH": str(FOLDER),
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "",
}
needed = pytest.mark.skipif(
    not FOLDER.exists(),
    reason=f"no TPU compiler (libtpu, Linux on x86-64 only) in {FOLDER}",
)


def output_of(program: str) -> str:
  """Returns the output of a Python program in a process with the compiler."""
  done = subprocess.run(
      [sys.executable, "-c", program],
      env=os.environ | ENVIRONMENT,
      capture_output=True,
      text=True,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout
