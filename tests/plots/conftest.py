"""The plots' tests compile tiny models, which takes longer than to run them."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import saved_runs

from dape_jax import data
from dape_jax.checkpoint.runs import Run
from dape_jax.checkpoint.state import init_state
from dape_jax.config import (
    DataConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)
from dape_jax.data import sources
from dape_jax.models import Transformer


@pytest.fixture(scope="module", autouse=True)
def _compile_fast():
  jax.config.update("jax_disable_most_optimizations", True)
  yield
  jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session")
def make_run():
  """Returns a function: encoding, parameters -> a run that is in memory only.

  The parameters are those of all layers' encodings; others are random.
  """

  def make(encoding, params=None, **changes):
    values = dict(num_layers=2, width=8, num_heads=2, encoding=encoding)
    model = ModelConfig(**values | changes)
    shapes = jax.eval_shape(
        Transformer(model).init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32)
    )["params"]
    rng = np.random.default_rng(0)
    values = jax.tree.map(
        lambda x: jnp.float32(rng.normal(size=x.shape)), shapes
    )
    if params is not None:
      shared = model.share_encoding
      where = values if shared else values["layers"]["attention"]
      own = where["encoding"]
      own = own.get("base", own)
      assert own.keys() == params.keys()
      own.update({k: jnp.asarray(v, jnp.float32) for k, v in params.items()})
    config = ExperimentConfig(
        model, DataConfig(length=64), OptimizerConfig(), TrainConfig()
    )
    folder = pathlib.Path("/runs") / encoding
    return Run(str(folder), folder, config, values, 7, "f")

  return make


def _documents():
  return saved_runs.documents((90, 40, 60))


@pytest.fixture(scope="session")
def _saved_run(tmp_path_factory):
  """Folder with a run "dape" on disk, a text of 25 bytes and prepared data."""
  root = tmp_path_factory.mktemp("runs")
  (root / "text.py").write_text("def f(x):\n  return 2 * x\n")
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(sources.SOURCES, "code", _documents)
    corpus = data.load_corpus("code", "bytes", root / "data")
  model = ModelConfig(
      num_layers=2,
      width=8,
      num_heads=2,
      encoding="dape_kerple_log",
      dtype="float32",
  )
  init = lambda: init_state(Transformer(model), optax.sgd(0.1), seed=0)
  state = dataclasses.replace(jax.jit(init)(), step=jnp.asarray(3, jnp.int32))
  batches = data.TrainBatches(
      corpus.split("train"),
      length=16,
      batch_size=2,
      seed=0,
      packing="segments",
  )
  saved_runs.save_run(
      root / "dape",
      state,
      DataConfig(length=16, dir=str(root / "data")),
      batches.data_state(3),
      model=model,
  )
  return root


@pytest.fixture
def in_saved_run(_saved_run, monkeypatch):
  """Returns the folder of the saved run, in which the test runs."""
  monkeypatch.setitem(sources.SOURCES, "code", _documents)
  monkeypatch.chdir(_saved_run)
  return _saved_run
