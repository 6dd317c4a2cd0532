"""A run: its data, its jitted steps and its initial state."""

import functools
from typing import Any

import jax

from dape_jax.checkpoint.state import TrainState, init_state
from dape_jax.config import ExperimentConfig, TaskConfig
from dape_jax.data import TaskBatches, TrainBatches, load_corpora, tasks
from dape_jax.data.batches import Batches
from dape_jax.errors import ConfigError
from dape_jax.models import Transformer
from dape_jax.models.layer_encodings import check_positions, check_ring
from dape_jax.parallel import partitioning
from dape_jax.training.optimizer import learning_rate_schedule, make_optimizer
from dape_jax.training.step import make_eval_step, make_train_step


class Program:
  """A run without its data: the state and jitted steps on a mesh.

  Attributes:
    config, mesh: the run's settings and mesh.
    abstract_state: shapes of the state, with shardings.
    train_step, eval_step: see `make_train_step` and `make_eval_step`.
  """

  def __init__(self, config: ExperimentConfig, mesh: jax.sharding.Mesh):
    """Traces the model; compiles nothing.

    Raises:
      ConfigError: settings of the model, batch or mesh are incompatible.
    """
    partitioning.check_batch(config, mesh)
    length = config.data.row_length
    check_positions(config.model, length, f"rows of {length} tokens")
    max_position = config.train.max_position
    check_positions(
        config.model, max_position, f"config.train.max_position={max_position}"
    )
    if config.mesh.ring:
      check_ring(config.model, length // config.mesh.context)
    model = Transformer(config.model)
    optimizer = make_optimizer(config.optimizer, config.train.steps)
    self.config = config
    self.mesh = mesh
    self._init_state = functools.partial(
        init_state, model, optimizer, config.seed
    )
    state = jax.eval_shape(self._init_state)
    self._shardings = partitioning.state_sharding(state, mesh)
    self.abstract_state = partitioning.abstract(state, self._shardings)
    self.train_step = make_train_step(
        model,
        optimizer,
        learning_rate_schedule(config.optimizer, config.train.steps),
        mesh,
        max_position=max_position,
        loss_mean=config.train.loss_mean,
        seed=config.seed,
    )
    self.eval_step = make_eval_step(
        model, mesh, loss_mean=config.train.loss_mean
    )

  def new_state(self) -> TrainState:
    """Returns the initial state; each device computes its own part."""
    return jax.jit(self._init_state, out_shardings=self._shardings)()


class Run(Program):
  """A program and its data.

  Attributes:
    batches, validation: see `make_batches`.
  """

  def __init__(self, config: ExperimentConfig, mesh: jax.sharding.Mesh):
    """Opens the data, preparing it if necessary.

    Raises:
      ConfigError: settings are incompatible; see also `make_batches`.
    """
    # Check the model's settings before preparing any data.
    super().__init__(config, mesh)
    self.batches, self.validation = make_batches(config)

  def batch(self, step: int) -> dict[str, jax.Array]:
    """Returns the batch of a training step, counted from 0."""
    return self._on_devices(self.batches, step)

  def validation_loss(self, params: Any) -> float:
    """Returns the loss over the first validation batches, see `loss_count`."""
    # At most one epoch, so that no window counts twice unless there are too few
    # for one batch.
    available = self.validation.num_windows // self.config.train.batch_size
    count = min(self.config.train.eval_batches, max(available, 1))
    sums = [
        self.eval_step(params, self._on_devices(self.validation, i))
        for i in range(count)
    ]
    nats, tokens = zip(*jax.device_get(sums))
    return float(sum(map(float, nats)) / sum(map(float, tokens)))

  def _on_devices(self, batches: Batches, step: int) -> dict[str, jax.Array]:
    return partitioning.global_batch(
        batches, step, self.config.train.accumulation, self.mesh
    )


def make_batches(config: ExperimentConfig) -> tuple[Batches, Batches]:
  """Returns the training and the validation batches, of text or of a task.

  The validation batches do not depend on the run's seed.

  Raises:
    ConfigError: the model's vocabulary or output is too small for the data; see
      also `load_corpora`.
  """
  data, model = config.data, config.model
  shape = dict(length=data.length, batch_size=config.train.batch_size)
  if isinstance(data, TaskConfig):
    task = tasks.make(data.task)
    name = f"config.data.task={data.task!r}"
    outputs = model.num_outputs or model.vocab_size
    for field, size, needed in (
        ("vocab_size", model.vocab_size, task.vocab_size),
        ("num_outputs", outputs, task.num_outputs),
    ):
      _check_size(field, size, needed, name, needed)
    batches = functools.partial(
        TaskBatches,
        data.task,
        lengths_per_batch=data.lengths_per_batch,
        **shape,
    )
    # No run has seed 2**64. 2**32 would not do: NumPy's generators read it as
    # the words 0 and 1, so its first batch would be the second of seed 0.
    return batches(seed=config.seed), batches(seed=2**64)
  corpora = load_corpora(
      source=data.source, tokenizer=data.tokenizer, data_dir=data.dir
  )
  tokenizer = corpora[0].tokenizer
  _check_size(
      "vocab_size",
      model.vocab_size,
      tokenizer.vocab_size,
      f"the tokenizer {tokenizer.name!r}",
      tokenizer.padded_vocab_size,
  )
  batches = functools.partial(
      TrainBatches, packing=data.packing, weights=data.weights, **shape
  )
  return (
      batches([c.split("train") for c in corpora], seed=config.seed),
      batches([c.split("validation") for c in corpora], seed=0),
  )


def _check_size(field: str, size: int, needed: int, of: str, fix: int) -> None:
  if size < needed:
    raise ConfigError(
        f"config.model.{field}={size} is less than the {needed} of {of}; use"
        f" {fix}."
    )
