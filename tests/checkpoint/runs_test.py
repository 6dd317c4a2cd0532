"""Runs have short names; changed parameters are rejected."""

import pathlib
import shutil

import optax
import pytest
import saved_runs

from dape_jax.checkpoint import runs
from dape_jax.checkpoint.state import init_state
from dape_jax.config import DataConfig
from dape_jax.errors import ConfigError
from dape_jax.models import Transformer


def _run(workdir, step):
  return runs.Run(
      pathlib.Path(workdir), pathlib.Path(workdir), None, {}, step, "f"
  )


@pytest.mark.parametrize(
    "workdirs_and_steps, names",
    [
        ([("/x/a", 1)], ["a"]),
        ([("/x/a", 1), ("/x/b", 1)], ["a", "b"]),
        ([("/x/a", 1), ("/y/a", 1)], ["x/a", "y/a"]),
        ([("/x/a", 1), ("/x/a", 2)], ["a@1", "a@2"]),
        # The baseline is called "crop".
        ([("/x/crop", 1), ("/x/a", 1)], ["x/crop", "x/a"]),
        ([("/x/a\n\x1bb\udcff", 1)], ["a??b?"]),
    ],
)
def test_run_names_are_shortest_unique(workdirs_and_steps, names):
  assert runs.run_names([_run(*r) for r in workdirs_and_steps]) == names


def test_same_checkpoint_twice_is_rejected():
  with pytest.raises(ConfigError, match="given twice"):
    runs.run_names([_run("/x/a", 1)] * 2)


def test_changed_parameters_are_rejected(tmp_path):
  for seed in (0, 1):
    state = init_state(Transformer(saved_runs.TINY), optax.sgd(0.1), seed)
    shutil.rmtree(tmp_path / "a", ignore_errors=True)
    saved_runs.save_run(tmp_path / "a", state, DataConfig())
    if seed == 0:
      run = runs.find_run(tmp_path / "a")
      runs.load_params(run)
  with pytest.raises(ConfigError, match="parameters changed during evaluation"):
    runs.load_params(run)
