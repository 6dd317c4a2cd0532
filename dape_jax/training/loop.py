"""The training loop: resume, step, log, evaluate, checkpoint, stop."""

import contextlib
import math
import os
from collections.abc import Mapping

import jax

from dape_jax.checkpoint.paths import absolute_path
from dape_jax.checkpoint.saver import CheckpointSaver
from dape_jax.config import ExperimentConfig, TaskConfig
from dape_jax.config.dicts import experiment_to_dict
from dape_jax.parallel import distributed, partitioning
from dape_jax.training.flops import flops_per_token
from dape_jax.training.metrics import MetricsWriter, Throughput
from dape_jax.training.profile import ProfileWindow, check_profile_steps
from dape_jax.training.resume import check_same_run, first_state
from dape_jax.training.run import Run
from dape_jax.training.workdir import alone_in, write_config, writing_to


class FailedRunError(RuntimeError):
  """A run that cannot go on, or whose last state is lost."""


def _is_due(every: int, step: int, last: int) -> bool:
  return step == last or (every > 0 and step % every == 0)


def _open(config: ExperimentConfig) -> Run:
  """Returns the run of a config, the same in all processes."""
  with distributed.failing_together():
    run = Run(config, partitioning.make_mesh(config.mesh))
  check_same_run(run)
  return run


def _description(run: Run) -> str:
  """Returns what a run computes, where and of what, in a line."""
  devices = jax.devices()
  mesh = " x ".join(f"{axis} {n}" for axis, n in run.mesh.shape.items())
  leaves = jax.tree.leaves(run.abstract_state.params)
  num_params = sum(math.prod(x.shape) for x in leaves)
  train, data = run.config.train, run.config.data
  text = data.task if isinstance(data, TaskConfig) else data.source
  return (
      f"{run.config.model.encoding}, {num_params:,} parameters, {text!r} in rows"
      f" of {data.row_length} tokens, {train.batch_size} a step, on"
      f" {len(devices)} x {devices[0].device_kind} ({mesh})"
  )


def _check_finite(step: int, **values: float) -> None:
  for name, value in values.items():
    if not math.isfinite(value):
      raise FailedRunError(
          f"{name} is {value} at step {step}; this state is not saved. Lower"
          " config.optimizer.learning_rate, or lengthen"
          " config.optimizer.warmup_steps, and give another --workdir."
      )


def _report(
    run: Run,
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


def train_steps(run, state, saver, writer, throughput, profile) -> None:
  """Makes the steps that are left, or those until the run is told to stop."""
  train = run.config.train
  config = experiment_to_dict(run.config)
  first_step = int(jax.device_get(state.step))
  pending = None
  with distributed.Preemption() as preemption:
    for step in range(first_step + 1, train.steps + 1):
      profile.before(step)
      batch = run.batch(step - 1)
      state, metrics = run.train_step(state, batch)
      # The device works on this step while the host waits for the one before it
      # and makes the next batch.
      if pending is not None:
        _report(run, *pending, writer, throughput)
      pending = (step, metrics)
      if profile.after(step, metrics):
        distributed.say(
            f"the profile is in {profile.folder}: xprof --logdir=FOLDER"
        )
      stop = preemption.reached(step)
      evaluate = train.eval_every and _is_due(
          train.eval_every, step, train.steps
      )
      save = stop or _is_due(train.checkpoint_every, step, train.steps)
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
        nats, _ = jax.device_get(run.eval_step(state.params, batch))
        _check_finite(step, **{"loss after the update": float(nats)})
        writer.flush()
        saver.save(state, config, run.batches.data_state(step))
      if stop:
        break
      throughput.restart(step)
    # Told to stop once more, it must not end before the last state is written.
    saved = saver.wait()
  if not saved:
    raise FailedRunError(
        f"the state after step {step} could not be written (see above); the same"
        " command goes on from the checkpoint before it."
    )
  if stop and step < train.steps:
    distributed.say(
        f"stopped by SIGTERM after step {step} of {train.steps}, which is saved;"
        " the same command goes on."
    )


def train(
    config: ExperimentConfig,
    workdir: str | os.PathLike[str],
    *,
    skip_damaged: bool = False,
    profile_steps: tuple[int, int] | None = None,
) -> None:
  """Trains a model, or goes on with a run that was interrupted.

  The same call with the same workdir goes on from the latest checkpoint; the
  losses are those of a run that was never interrupted, bit for bit on the same
  devices. The workdir gets config.json, metrics.jsonl, tensorboard/, checkpoints/
  and a lock, which keeps a second run out of it. Told to stop by SIGTERM, it saves
  and returns.

  In a run of several processes all make the same call, after
  `distributed.initialize`.

  Args:
    config: the experiment.
    workdir: a folder, created if missing; local (for several processes: one that
      all see), or gs://... with gcsfs installed.
    skip_damaged: go on from the latest checkpoint that is whole; those after it
      are moved to workdir/damaged_checkpoints.
    profile_steps: first and last step to profile, into workdir/profile.

  Raises:
    ConfigError: a setting, the workdir or a checkpoint in it does not fit.
    FailedRunError: the loss is infinite or NaN (the checkpoints are those from
      before), or the last checkpoint could not be written.
  """
  workdir = absolute_path(workdir)
  with writing_to(workdir):
    workdir.mkdir(parents=True, exist_ok=True)
  run = _open(config)
  distributed.say(_description(run))
  tokens_per_step = config.train.batch_size * config.data.row_length
  params = run.abstract_state.params
  throughput = Throughput(
      tokens_per_step,
      flops_per_token(config.model, params, config.data.row_length),
  )
  with contextlib.ExitStack() as stack:
    stack.enter_context(jax.set_mesh(run.mesh))
    stack.enter_context(alone_in(workdir))
    folder = workdir / "checkpoints"
    state = first_state(run, folder, skip_damaged)
    first_step = int(jax.device_get(state.step))
    if first_step >= config.train.steps:
      distributed.say(
          f"{workdir}: already finished, {first_step} of"
          f" {config.train.steps} steps."
      )
      return
    check_profile_steps(profile_steps, first_step, config.train.steps)
    with writing_to(workdir):
      saver = stack.enter_context(
          CheckpointSaver(
              folder, config.train.keep_checkpoints, config.train.keep_every
          )
      )
      if jax.process_index() == 0:
        write_config(config, workdir)
      writer = stack.enter_context(
          MetricsWriter(
              workdir,
              first_step=first_step,
              total_steps=config.train.steps,
              tokens_per_step=tokens_per_step,
              main_process=jax.process_index() == 0,
          )
      )
    profile = stack.enter_context(
        ProfileWindow(workdir / "profile", profile_steps)
    )
    stack.enter_context(jax.transfer_guard("disallow"))
    train_steps(run, state, saver, writer, throughput, profile)
