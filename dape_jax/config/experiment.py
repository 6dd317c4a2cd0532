"""Settings of an experiment: frozen, validated once, stored in checkpoints.

Config files (`configs/*.py`) return an `ml_collections.ConfigDict` with the
same fields, which `config_dict.experiment_from_dict` turns into these
dataclasses. Every message names the field.
"""

import dataclasses

from dape_jax.config.checks import (
    require,
    require_choice,
    require_finite,
    require_not_negative,
    require_positive,
)
from dape_jax.config.data import DataConfig, TaskConfig
from dape_jax.config.mesh import MeshConfig
from dape_jax.config.model import ModelConfig

__all__ = [
    "DataConfig",
    "ExperimentConfig",
    "MeshConfig",
    "ModelConfig",
    "OptimizerConfig",
    "TaskConfig",
    "TrainConfig",
]


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """AdamW with linear warm-up, cosine decay and gradient clipping.

  Attributes:
    learning_rate: peak, reached after warmup_steps.
    final_learning_rate: reached at the last step.
    warmup_steps: linear from 0.
    beta1, beta2, eps: Adam's.
    weight_decay: decoupled.
    decay: what is decayed: "all" (the DAPE recipe, biases and encoding
      parameters too) or "matrices" (parameters of the network with two or more
      axes per layer; never biases, norms or the position encoding's).
    clip_norm: global gradient norm; 0 turns clipping off.
  """

  learning_rate: float = 6e-4
  final_learning_rate: float = 6e-5
  warmup_steps: int = 500
  beta1: float = 0.9
  beta2: float = 0.95
  eps: float = 1e-8
  weight_decay: float = 0.1
  decay: str = "matrices"
  clip_norm: float = 1.0

  def __post_init__(self):
    numbers = (f.name for f in dataclasses.fields(self) if f.type is float)
    require_finite("optimizer", self, *numbers)
    require_positive("optimizer", self, "learning_rate", "eps")
    require_not_negative(
        "optimizer",
        self,
        "final_learning_rate",
        "warmup_steps",
        "weight_decay",
        "clip_norm",
    )
    for name in ("beta1", "beta2"):
      value = getattr(self, name)
      require(0 <= value < 1, f"optimizer.{name}", value, "must be in [0, 1).")
    require_choice("optimizer.decay", self.decay, ("all", "matrices"))


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """Length and rhythm of a run.

  Attributes:
    steps: optimizer steps.
    batch_size: windows per optimizer step, over all devices and hosts.
    accumulation: microbatches that one step's batch is split into.
    log_every: in steps.
    eval_every, checkpoint_every: in steps; 0 turns it off (a checkpoint is
      always written at the end).
    eval_batches: validation batches of batch_size windows per evaluation, or as
      many as the split has.
    keep_checkpoints: how many of the latest stay on disk.
    keep_every: checkpoints whose step is a multiple stay too; 0 is none.
    max_position: train on randomized positions (arXiv 2305.16843), a sorted
      sample of 0..max_position - 1 for each window; 0 takes them as they are.
      Validation and the evaluation of perplexity always do; the accuracy of a
      generated task is measured on randomized positions too, as in the paper.
    loss_mean: "token", the mean over all tokens that have a loss, or "row", the
      sum over those of a row and the mean over rows.
  """

  steps: int = 50_000
  batch_size: int = 32
  accumulation: int = 1
  log_every: int = 10
  eval_every: int = 1000
  eval_batches: int = 16
  checkpoint_every: int = 1000
  keep_checkpoints: int = 2
  keep_every: int = 0
  max_position: int = 0
  loss_mean: str = "token"

  def __post_init__(self):
    require_positive(
        "train",
        self,
        "steps",
        "batch_size",
        "accumulation",
        "log_every",
        "eval_batches",
        "keep_checkpoints",
    )
    require_not_negative(
        "train",
        self,
        "eval_every",
        "checkpoint_every",
        "keep_every",
        "max_position",
    )
    require_choice("train.loss_mean", self.loss_mean, ("token", "row"))
    require(
        self.batch_size % self.accumulation == 0,
        "train.accumulation",
        self.accumulation,
        f"does not divide config.train.batch_size={self.batch_size}.",
    )


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
  """Everything that determines a training run; `mesh` fits it to a machine."""

  model: ModelConfig
  data: DataConfig | TaskConfig
  optimizer: OptimizerConfig
  train: TrainConfig
  seed: int = 0
  mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)

  def __post_init__(self):
    require(
        type(self.seed) is int and 0 <= self.seed < 2**32,
        "seed",
        self.seed,
        "must be an int from 0 to 2**32 - 1.",
    )
    is_task = isinstance(self.data, TaskConfig)
    length = self.data.row_length
    require(
        length % self.mesh.context == 0,
        "mesh.context",
        self.mesh.context,
        f"does not divide the {length} tokens of a row.",
    )
    max_position = self.train.max_position
    require(
        max_position == 0 or max_position >= length,
        "train.max_position",
        max_position,
        f"must be at least the {length} tokens of a row, or 0.",
    )
    require(
        not is_task or self.train.batch_size % self.data.lengths_per_batch == 0,
        "train.batch_size",
        self.train.batch_size,
        "not a multiple of config.data.lengths_per_batch.",
    )
    require(
        is_task or self.model.causal,
        "model.causal",
        self.model.causal,
        "an encoder sees the next token, which is the target in text; set True,"
        " or train on a task.",
    )
    require(
        is_task or self.model.num_outputs == 0,
        "model.num_outputs",
        self.model.num_outputs,
        "of text, the outputs are the tokens; set 0.",
    )
    require(
        not (max_position and any(self.model.windows)),
        "train.max_position",
        max_position,
        f"config.model.windows={self.model.windows} count by position, and would"
        " hold fewer tokens than they say; turn one off.",
    )
