"""The training loop: resume, step, log, evaluate, checkpoint."""

import contextlib
import functools
import json
import math
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from dape_jax.config import ExperimentConfig
from dape_jax.config_dict import experiment_to_dict
from dape_jax.errors import ConfigError
from dape_jax.models import Transformer
from dape_jax.models.layer_encodings import check_positions
from dape_jax.training import checkpoint, partitioning
from dape_jax.training.batches import make_batches
from dape_jax.training.metrics import MetricsWriter, Throughput
from dape_jax.training.optimizer import learning_rate_schedule, make_optimizer
from dape_jax.training.resume import check_same_config
from dape_jax.training.state import init_state
from dape_jax.training.step import make_eval_step, make_train_step


class NonFiniteLossError(RuntimeError):
  """The loss or the gradient is infinite or not a number."""


@contextlib.contextmanager
def _writing_to(workdir: pathlib.Path) -> Iterator[None]:
  try:
    yield
  except OSError as e:
    raise ConfigError(
        f"--workdir={workdir} cannot be written ({e.strerror or e}); give a"
        " folder that can."
    ) from e


def _write_config(config: ExperimentConfig, workdir: pathlib.Path) -> None:
  temporary = workdir / "config.json.tmp"
  temporary.write_text(json.dumps(experiment_to_dict(config), indent=2) + "\n")
  os.replace(temporary, workdir / "config.json")


def _is_due(every: int, step: int, last: int) -> bool:
  return step == last or (every > 0 and step % every == 0)


class _Run:
  """A run with its data, its programs and its state."""

  def __init__(self, config: ExperimentConfig, mesh: jax.sharding.Mesh):
    partitioning.check_batch(config, mesh)
    length = config.data.row_length
    check_positions(config.model, length, f"rows of {length} tokens")
    check_positions(
        config.model,
        config.train.max_position,
        f"config.train.max_position={config.train.max_position}",
    )
    model = Transformer(config.model)
    optimizer = make_optimizer(config.optimizer, config.train.steps)
    self.init_state = functools.partial(
        init_state, model, optimizer, config.seed
    )
    # Wrong settings of the model are told here, before any data is prepared.
    self.abstract_state = jax.eval_shape(self.init_state)
    self.batches, self.validation = make_batches(config)
    self.config = config
    self.mesh = mesh
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

  def start(self, latest: pathlib.Path | None):
    """Returns the state and its step, of a checkpoint or of a new run."""
    if latest is None:
      shardings = partitioning.state_sharding(self.abstract_state, self.mesh)
      return jax.jit(self.init_state, out_shardings=shardings)(), 0
    metadata = checkpoint.load_metadata(latest)
    check_same_config(self.config, metadata["config"])
    self.batches.check_state(metadata["data_state"])
    state = checkpoint.load_state(latest, self.abstract_state, self.mesh)
    return state, int(state.step)

  def global_batch(self, batches, step: int):
    return partitioning.global_batch(
        batches, step, self.config.train.accumulation, self.mesh
    )

  def validation_loss(self, params: Any) -> float:
    """Returns nats per weighted token of the first validation batches."""
    # Not beyond the first epoch: no window counts twice.
    whole = self.validation.num_windows // self.config.train.batch_size
    count = min(self.config.train.eval_batches, max(whole, 1))
    sums = [
        self.eval_step(params, self.global_batch(self.validation, i))
        for i in range(count)
    ]
    nats, tokens = zip(*jax.device_get(sums))
    return float(sum(map(float, nats)) / sum(map(float, tokens)))


def _check_finite(step: int, **values: float) -> None:
  for name, value in values.items():
    if not math.isfinite(value):
      raise NonFiniteLossError(
          f"{name} is {value} at step {step}; this state is not saved. Lower"
          " config.optimizer.learning_rate, or lengthen"
          " config.optimizer.warmup_steps, and give another --workdir."
      )


def _report(
    run: _Run,
    step: int,
    metrics: Mapping[str, jax.Array],
    writer: MetricsWriter,
    throughput: Throughput,
) -> None:
  """Waits for the metrics of `step`, checks them and writes them if due."""
  fetched = jax.device_get(dict(metrics))
  names = ("loss", "gradient_norm", "learning_rate", "tokens")
  values = {name: float(fetched[name]) for name in names}
  _check_finite(
      step, loss=values["loss"], gradient_norm=values["gradient_norm"]
  )
  writer.advance(step)
  train = run.config.train
  if step == 1 or _is_due(train.log_every, step, train.steps):
    writer.write(step, values | throughput.measure(step))


def _train_steps(run, state, first_step, checkpoints, writer, throughput):
  """Makes the steps after `first_step`."""
  train = run.config.train
  config = experiment_to_dict(run.config)
  pending = None
  for step in range(first_step + 1, train.steps + 1):
    batch = run.global_batch(run.batches, step - 1)
    state, metrics = run.train_step(state, batch)
    # The device works on this step while the host waits for the one before it
    # and makes the next batch.
    if pending is not None:
      _report(run, *pending, writer, throughput)
    pending = (step, metrics)
    evaluate = train.eval_every and _is_due(train.eval_every, step, train.steps)
    save = _is_due(train.checkpoint_every, step, train.steps)
    if not evaluate and not save:
      continue
    # What a checkpoint covers must be in the log: a resumed run does not write
    # it again.
    _report(run, *pending, writer, throughput)
    pending = None
    if evaluate:
      loss = run.validation_loss(state.params)
      _check_finite(step, validation_loss=loss)
      writer.write(step, {"validation_loss": loss})
    if save:
      # The loss of a step is that before its update, which may have broken the
      # state.
      nats, _ = run.eval_step(state.params, batch)
      _check_finite(step, **{"loss after the update": float(nats)})
      checkpoints.save(state, config, run.batches.data_state(step))
    throughput.restart(step)


def train(config: ExperimentConfig, workdir: str | os.PathLike[str]) -> None:
  """Trains a model, or goes on with a run that was interrupted.

  The same call with the same workdir goes on from the latest checkpoint; the
  losses are those of a run that was never interrupted, bit for bit on the same
  devices. The workdir gets config.json, metrics.jsonl, tensorboard/ and
  checkpoints/.

  Args:
    config: the experiment.
    workdir: a folder, created if missing.

  Raises:
    ConfigError: a setting, the workdir or a checkpoint in it does not fit.
    NonFiniteLossError: the loss is infinite or NaN; the checkpoints are those
      from before.
  """
  if "://" in os.fspath(workdir):
    raise ConfigError(f"--workdir={workdir}: must be a local folder.")
  workdir = pathlib.Path(workdir).expanduser().absolute()
  main_process = jax.process_index() == 0
  with _writing_to(workdir):
    workdir.mkdir(parents=True, exist_ok=True)
  mesh = partitioning.make_mesh(config.mesh)
  run = _Run(config, mesh)
  tokens_per_step = config.train.batch_size * config.data.row_length
  with contextlib.ExitStack() as stack:
    stack.enter_context(jax.set_mesh(mesh))
    with _writing_to(workdir):
      checkpoints = stack.enter_context(
          checkpoint.Checkpoints(
              workdir / "checkpoints", config.train.keep_checkpoints
          )
      )
    state, first_step = run.start(checkpoints.latest)
    if first_step >= config.train.steps:
      print(
          f"{workdir}: already finished, {first_step} of"
          f" {config.train.steps} steps.",
          file=sys.stderr,
      )
      return
    with _writing_to(workdir):
      if main_process:
        _write_config(config, workdir)
      writer = stack.enter_context(
          MetricsWriter(
              workdir,
              first_step=first_step,
              total_steps=config.train.steps,
              tokens_per_step=tokens_per_step,
              main_process=main_process,
          )
      )
    _train_steps(
        run, state, first_step, checkpoints, writer, Throughput(tokens_per_step)
    )
