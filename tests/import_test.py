"""`import dape_jax` is light and exports the public names."""

import subprocess
import sys

import dape_jax

HEAVY = (
    "tensorflow",
    "orbax",
    "grain",
    "tensorflow_datasets",
    "matplotlib",
    "tensorboardX",
)


def test_import_is_light():
  code = (
      f"import sys, dape_jax; print([m for m in {HEAVY} if m in sys.modules])"
  )
  out = subprocess.run(
      [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert out.stdout.strip() == "[]"


def test_public_names_exist():
  for name in dape_jax.__all__:
    assert getattr(dape_jax, name) is not None
