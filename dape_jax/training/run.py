"""A run: its data, its compiled steps, and the state that it begins with."""

import functools
from typing import Any

import jax

from dape_jax.checkpoint.state import TrainState, init_state
from dape_jax.config import ExperimentConfig
from dape_jax.models import Transformer
from dape_jax.models.layer_encodings import check_positions, check_ring
from dape_jax.parallel import partitioning
from dape_jax.training.batches import make_batches
from dape_jax.training.optimizer import learning_rate_schedule, make_optimizer
from dape_jax.training.step import make_eval_step, make_train_step


class Program:
  """What a config compiles to on a mesh; needs no data.

  Attributes:
    config, mesh: of the run.
    abstract_state: shapes of the state, each with its sharding.
    train_step, eval_step: of `step`.
  """

  def __init__(self, config: ExperimentConfig, mesh: jax.sharding.Mesh):
    """Traces the model, but compiles nothing.

    Raises:
      ConfigError: settings of the model, the batch or the mesh do not fit.
    """
    partitioning.check_batch(config, mesh)
    length = config.data.row_length
    check_positions(config.model, length, f"rows of {length} tokens")
    check_positions(
        config.model,
        config.train.max_position,
        f"config.train.max_position={config.train.max_position}",
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
    self.abstract_state = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        state,
        self._shardings,
    )
    self.train_step = make_train_step(
        model,
        optimizer,
        learning_rate_schedule(config.optimizer, config.train.steps),
        mesh,
        max_position=config.train.max_position,
        loss_mean=config.train.loss_mean,
        seed=config.seed,
    )
    self.eval_step = make_eval_step(
        model, mesh, loss_mean=config.train.loss_mean
    )

  def new_state(self) -> TrainState:
    """Returns the state before the first step, each device making its part."""
    return jax.jit(self._init_state, out_shardings=self._shardings)()


class Run(Program):
  """A program with its data.

  Attributes:
    batches, validation: of `make_batches`.
  """

  def __init__(self, config: ExperimentConfig, mesh: jax.sharding.Mesh):
    """Opens the data, preparing it if need be.

    Raises:
      ConfigError: a setting does not fit, or see `make_batches`.
    """
    # Wrong settings of the model are told before any data is prepared.
    super().__init__(config, mesh)
    self.batches, self.validation = make_batches(config)

  def batch(self, step: int) -> dict[str, jax.Array]:
    """Returns the batch of a training step, counted from 0."""
    return self._on_devices(self.batches, step)

  def validation_loss(self, params: Any) -> float:
    """Returns nats per weighted token of the first validation batches."""
    # Not beyond the first epoch: no window counts twice, if there are as many as a
    # batch has.
    whole = self.validation.num_windows // self.config.train.batch_size
    count = min(self.config.train.eval_batches, max(whole, 1))
    sums = [
        self.eval_step(params, self._on_devices(self.validation, i))
        for i in range(count)
    ]
    nats, tokens = zip(*jax.device_get(sums))
    return float(sum(map(float, nats)) / sum(map(float, tokens)))

  def _on_devices(self, batches, step: int):
    return partitioning.global_batch(
        batches, step, self.config.train.accumulation, self.mesh
    )
