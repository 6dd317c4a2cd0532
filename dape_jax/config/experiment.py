"""Settings of an experiment: frozen dataclasses, validated at construction.

Config files (`configs/*.py`) return an `ml_collections.ConfigDict` with the
same fields; `experiment_from_dict` turns it into these dataclasses. Checkpoints
store them.
"""

import dataclasses

from dape_jax.config.checks import (
    check_fields,
    fraction,
    not_negative,
    one_of,
    positive,
    require,
)
from dape_jax.config.data import DataConfig, TaskConfig
from dape_jax.config.model import ModelConfig


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """AdamW with linear warm-up, cosine decay and gradient clipping.

  Attributes:
    learning_rate: peak learning rate, reached after warmup_steps.
    final_learning_rate: learning rate of the last step.
    warmup_steps: steps of linear warmup from 0.
    beta1, beta2, eps: Adam hyperparameters.
    weight_decay: decoupled weight decay.
    decay: parameters with weight decay: "all" (the DAPE recipe, including
      biases and encoding parameters) or "matrices" (network parameters with two
      or more axes per layer; never biases, norms or encoding parameters).
    clip_norm: maximum global gradient norm; 0 turns clipping off.
  """

  learning_rate: float = positive(6e-4)
  final_learning_rate: float = not_negative(6e-5)
  warmup_steps: int = not_negative(500)
  beta1: float = fraction(0.9)
  beta2: float = fraction(0.95)
  eps: float = positive(1e-8)
  weight_decay: float = not_negative(0.1)
  decay: str = one_of("matrices", "all")
  clip_norm: float = not_negative(1.0)

  def __post_init__(self):
    check_fields("optimizer", self)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """Run length, batch, and logging, evaluation and checkpoint intervals.

  Attributes:
    steps: optimizer steps.
    batch_size: windows per optimizer step, over all devices and hosts.
    accumulation: microbatches per step.
    log_every: steps between log lines.
    eval_every, checkpoint_every: steps between evaluations and checkpoints; 0
      turns them off (the run always ends with a checkpoint).
    eval_batches: maximum number of validation batches per evaluation.
    keep_checkpoints: number of latest checkpoints to keep.
    keep_every: also keep checkpoints at multiples of this step; 0 turns this
      off.
    max_position: train on randomized positions (arXiv 2305.16843), a sorted
      sample of 0..max_position - 1 for each window; 0 turns it off. Validation
      and perplexity use ordinary positions; the accuracy of a generated task is
      measured on randomized ones, as in the paper.
    loss_mean: "token", the mean over all tokens with a loss, or "row", the mean
      over rows of each row's sum.
  """

  steps: int = positive(50_000)
  batch_size: int = positive(32)
  accumulation: int = positive(1)
  log_every: int = positive(10)
  eval_every: int = not_negative(1000)
  eval_batches: int = positive(16)
  checkpoint_every: int = not_negative(1000)
  keep_checkpoints: int = positive(2)
  keep_every: int = not_negative(0)
  max_position: int = not_negative(0)
  loss_mean: str = one_of("token", "row")

  def __post_init__(self):
    check_fields("train", self)
    require(
        self.batch_size % self.accumulation == 0,
        "train.accumulation",
        self.accumulation,
        f"does not divide config.train.batch_size={self.batch_size}.",
    )


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Sizes of the mesh axes; their product is the total number of devices.

  They affect speed and memory per device, not the result: a run can resume on
  another mesh.

  Attributes:
    data: number of device groups; each holds the complete state and its own
      rows of the batch; -1 infers it from the number of devices.
    fsdp: devices per group; they split the group's rows, parameters and
      optimizer state (fully sharded data parallelism).
    context: devices that split each row by position.
    ring: with context, pass keys and values around a ring instead of gathering
      them: less memory for long rows, more time.
  """

  data: int = -1
  fsdp: int = positive(1)
  context: int = positive(1)
  ring: bool = False

  def __post_init__(self):
    check_fields("mesh", self)
    require(
        self.data == -1 or self.data > 0,
        "mesh.data",
        self.data,
        "must be greater than 0, or -1 to infer it from the devices.",
    )
    require(
        not self.ring or self.context > 1,
        "mesh.ring",
        self.ring,
        "requires rows split by position; set config.mesh.context above 1.",
    )


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
  """All settings of a training run; `mesh` does not affect its result."""

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
        "must be a multiple of config.data.lengths_per_batch.",
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
        "text models predict tokens; set 0.",
    )
    require(
        not (max_position and any(self.model.windows)),
        "train.max_position",
        max_position,
        f"config.model.windows={self.model.windows} are measured in positions"
        " and would hold fewer tokens; turn off one of the two.",
    )
