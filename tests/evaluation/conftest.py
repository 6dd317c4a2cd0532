"""Checkpoints of untrained models, and eval.py to call on them."""

import dataclasses
import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import optax
import pytest
import saved_runs
from absl.testing import flagsaver

from dape_jax import cli, data
from dape_jax.checkpoint.state import init_state
from dape_jax.config import DataConfig, TaskConfig
from dape_jax.data import sources
from dape_jax.models import Transformer

_SCRIPT = pathlib.Path(__file__).parents[2] / "eval.py"


def _documents(seed):
  return saved_runs.documents((100, 700, 400), seed)


@pytest.fixture(scope="session")
def documents():
  """Returns a function: seed -> documents of a corpus."""
  return _documents


@pytest.fixture(scope="session")
def evaluate_main():
  spec = importlib.util.spec_from_file_location("eval_script", _SCRIPT)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.main


@pytest.fixture(scope="session")
def root(tmp_path_factory):
  """Folder with runs a (trained at 16), seed1 (a with another seed), b (at 32),
  other (another corpus) and task (no text).
  """
  root = tmp_path_factory.mktemp("runs")
  for name, text in (("data.txt", b"abcd" * 125), ("more.txt", b"efgh" * 80)):
    (root / name).write_bytes(text)
  model = Transformer(saved_runs.TINY)
  init = jax.jit(lambda seed: init_state(model, optax.sgd(0.1), seed))
  with pytest.MonkeyPatch.context() as patch:
    for name, length, seed, of_text in (
        ("a", 16, 0, 0),
        ("seed1", 16, 1, 0),
        ("b", 32, 0, 0),
        ("other", 16, 0, 1),
        ("task", 16, 0, None),
    ):
      state = dataclasses.replace(init(seed), step=jnp.asarray(3, jnp.int32))
      text = DataConfig(length=length, dir=str(root / "data"))
      fingerprint = None
      if of_text is None:
        text = TaskConfig(task="parity_check")
      else:
        patch.setitem(sources.SOURCES, "code", lambda n=of_text: _documents(n))
        fingerprint = data.load_corpus("code", "bytes", text.dir).fingerprint
      saved_runs.save_run(
          root / name, state, text, {"fingerprint": fingerprint}, seed=seed
      )
  return root


@pytest.fixture
def evaluate(evaluate_main, root, monkeypatch, capsys):
  """Runs eval.py; returns its exit status, stdout and stderr."""
  monkeypatch.setitem(sources.SOURCES, "code", lambda: _documents(0))
  monkeypatch.chdir(root)

  @flagsaver.flagsaver
  def call(*arguments):
    with pytest.raises(SystemExit) as exit_:
      cli.run(evaluate_main, ["eval.py", *arguments])
    out, err = capsys.readouterr()
    return exit_.value.code or 0, out, err

  return call
