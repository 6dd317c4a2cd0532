"""Runs on disk, written by the same code as in training."""

import numpy as np
from etils import epath

from dape_jax import data
from dape_jax.checkpoint.saver import CheckpointSaver
from dape_jax.config import (
    DataConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TaskConfig,
    TrainConfig,
)
from dape_jax.config.dicts import experiment_to_dict

TINY = ModelConfig(
    num_layers=1,
    width=16,
    num_heads=2,
    encoding="kerple_log",
    dtype="float32",
)


def documents(sizes, seed=0):
  """Returns documents of random letters, with these sizes in each split."""
  rng = np.random.default_rng(seed)
  return [
      data.Document(
          f"{split}/{number}.py",
          split,
          split,
          rng.integers(97, 105, size).astype(np.uint8).tobytes(),
      )
      for split in ("train", "validation", "test")
      for number, size in enumerate(sizes)
  ]


def save_run(
    folder,
    state,
    trained_on: DataConfig | TaskConfig,
    data_state=None,
    *,
    model: ModelConfig = TINY,
    seed=0,
):
  """Writes the checkpoint of a run whose workdir is `folder`."""
  config = ExperimentConfig(
      model, trained_on, OptimizerConfig(), TrainConfig(), seed
  )
  checkpoints = epath.Path(folder / "checkpoints")
  with CheckpointSaver(checkpoints, keep=2) as checkpoints:
    checkpoints.save(state, experiment_to_dict(config), data_state or {})
