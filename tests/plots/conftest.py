"""The plots' tests compile tiny models, which takes longer than to run them."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dape_jax.config import (
    DataConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)
from dape_jax.evaluation.runs import Run
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
