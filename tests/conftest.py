"""Eight emulated CPU devices; accidental rank promotion is an error.

Programs compile without LLVM's optimizations, and with XLA's older emitters
where available: test programs are small and run once, so compilation dominates
the time of the suite.
"""

import importlib.metadata
import json
import os
import pathlib
import runpy

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8"
    + " --xla_backend_optimization_level=0"
    + (
        " --xla_cpu_use_fusion_emitters=false"
        if importlib.metadata.version("jaxlib").startswith("0.10.")
        else ""
    )
)

import jax
import numpy as np
import pytest

from dape_jax import data
from dape_jax.checkpoint.state import init_state
from dape_jax.config.dicts import experiment_from_dict
from dape_jax.models import Transformer
from dape_jax.parallel import partitioning
from dape_jax.training.optimizer import make_optimizer

jax.config.update("jax_numpy_rank_promotion", "raise")

_TINY_CONFIG = pathlib.Path(__file__).parent / "support" / "tiny_config.py"


@pytest.fixture(scope="session", autouse=True)
def _compile_once(tmp_path_factory):
  """Test workers and the commands they start share a compilation cache."""
  folder = tmp_path_factory.getbasetemp()
  if "PYTEST_XDIST_WORKER" in os.environ:
    folder = folder.parent
  folder = str(folder / "jax_cache")
  os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
  os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
  jax.config.update("jax_compilation_cache_dir", folder)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@pytest.fixture(scope="session")
def make_config():
  """Returns a function: {"train.steps": 3} -> tiny config with that changed."""

  def make(changes=None):
    config = runpy.run_path(str(_TINY_CONFIG))["get_config"]()
    config.update_from_flattened_dict(changes or {})
    return experiment_from_dict(config.to_dict())

  return make


def _make_corpus(folder, seed=0):
  rng = np.random.default_rng(seed)
  documents = [
      data.Document(
          path=f"{split}/{i}",
          group=f"{split}/{i}",
          split=split,
          text=bytes(rng.integers(97, 105, size, dtype=np.uint8)),
      )
      for split, sizes in {
          "train": (700, 30, 1, 596),
          "validation": (300,),
          "test": (100,),
      }.items()
      for i, size in enumerate(sizes)
  ]
  return data.open_corpus(documents, "tiny", data_dir=folder)


@pytest.fixture(scope="session")
def make_corpus():
  """Returns a function: folder, seed -> corpus with 41 training windows.

  With the tiny config's batches of 8, an epoch ends within a batch.
  """
  return _make_corpus


@pytest.fixture(scope="session")
def tiny_corpus(make_corpus, tmp_path_factory):
  return make_corpus(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def read_results():
  """Returns a function: workdir -> lines of metrics.jsonl without timings."""

  def read(workdir):
    lines = (pathlib.Path(workdir) / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
      record.pop("tokens_per_second", None)
      record.pop("seconds_per_step", None)
    return records

  return read


@pytest.fixture(scope="session")
def make_mesh():
  """Returns a function: number of devices -> mesh of the first ones."""

  def make(num_devices):
    return partitioning.make_mesh(devices=jax.devices()[:num_devices])

  return make


@pytest.fixture(scope="session")
def make_state():
  """Returns a function: config, mesh -> state before the first step."""

  def make(config, mesh):
    model = Transformer(config.model)
    optimizer = make_optimizer(config.optimizer, config.train.steps)
    init = lambda: init_state(model, optimizer, config.seed)
    shardings = partitioning.state_sharding(jax.eval_shape(init), mesh)
    return jax.jit(init, out_shardings=shardings)()

  return make
