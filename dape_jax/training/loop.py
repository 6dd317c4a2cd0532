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
from dape_jax.training.run import Run
from dape_jax.training.workdir import (
    alone_in,
    check_same_run,
    first_state,
    write_config,
    writing_to,
)


class FailedRunError(RuntimeError):
  """Raised when a run diverges or cannot write its last checkpoint."""


def train(
    config: ExperimentConfig,
    workdir: str | os.PathLike[str],
    *,
    skip_damaged: bool = False,
    profile_steps: tuple[int, int] | None = None,
) -> None:
  """Trains a model, or resumes an interrupted run.

  A call with the workdir of an interrupted run resumes from its latest
  checkpoint; the losses equal those of an uninterrupted run, bit for bit on the
  same devices. The workdir gets config.json, metrics.jsonl, tensorboard/,
  checkpoints/ and a lock that keeps other runs out. On SIGTERM it saves a
  checkpoint and returns.

  In a multi-process run, every process makes the same call after
  `distributed.initialize`.

  Args:
    config: the experiment.
    workdir: a folder, created if missing: local (on a shared file system for
      several processes), or gs://... with gcsfs installed.
    skip_damaged: resume from the latest intact checkpoint; damaged ones after
      it are moved to workdir/damaged_checkpoints.
    profile_steps: first and last step to profile, into workdir/profile.

  Raises:
    ConfigError: a setting is invalid, the workdir is not usable, or a
      checkpoint in it does not match the config.
    FailedRunError: the loss is infinite or NaN (no checkpoint has such a
      state), or the last checkpoint could not be written.
  """
  workdir = absolute_path(workdir)
  with writing_to(workdir):
    workdir.mkdir(parents=True, exist_ok=True)
  with distributed.failing_together():
    run = Run(config, partitioning.make_mesh(config.mesh))
  check_same_run(run)
  distributed.say(_description(run))
  settings, row_length = config.train, config.data.row_length
  tokens_per_step = settings.batch_size * row_length
  throughput = Throughput(
      tokens_per_step,
      flops_per_token(config.model, run.abstract_state.params, row_length),
  )
  is_main = jax.process_index() == 0
  with contextlib.ExitStack() as stack:
    stack.enter_context(jax.set_mesh(run.mesh))
    stack.enter_context(alone_in(workdir))
    folder = workdir / "checkpoints"
    state = first_state(run, folder, skip_damaged)
    first_step = int(jax.device_get(state.step))
    if first_step >= settings.steps:
      distributed.say(
          f"{workdir}: already finished, {first_step} of {settings.steps}"
          " steps."
      )
      return
    check_profile_steps(profile_steps, first_step, settings.steps)
    with writing_to(workdir):
      saver = CheckpointSaver(
          folder, settings.keep_checkpoints, settings.keep_every
      )
      stack.enter_context(saver)
      if is_main:
        write_config(config, workdir)
      writer = MetricsWriter(
          workdir,
          first_step=first_step,
          total_steps=settings.steps,
          tokens_per_step=tokens_per_step,
          main_process=is_main,
      )
      stack.enter_context(writer)
    profile = ProfileWindow(workdir / "profile", profile_steps)
    stack.enter_context(profile)
    stack.enter_context(jax.transfer_guard("disallow"))
    train_steps(run, state, saver, writer, throughput, profile)


def train_steps(run, state, saver, writer, throughput, profile) -> None:
  """Runs the remaining steps; stops early on SIGTERM."""
  train = run.config.train
  config = experiment_to_dict(run.config)
  first_step = int(jax.device_get(state.step))
  pending = None
  with distributed.Preemption() as preemption:
    for step in range(first_step + 1, train.steps + 1):
      profile.before(step)
      batch = run.batch(step - 1)
      state, metrics = run.train_step(state, batch)
      # While the device computes this step, the host waits for the previous one
      # and makes the next batch.
      if pending is not None:
        _report(run, *pending, writer, throughput)
      pending = (step, metrics)
      if profile.after(step, metrics):
        distributed.say(
            f"wrote the profile to {profile.folder}; view it with xprof"
            f" --logdir={profile.folder}"
        )
      stop = preemption.reached(step)
      evaluate = train.eval_every and _is_due(
          train.eval_every, step, train.steps
      )
      save = stop or _is_due(train.checkpoint_every, step, train.steps)
      if not evaluate and not save:
        continue
      # Log up to the checkpoint's step: a resumed run does not log earlier
      # steps again.
      _report(run, *pending, writer, throughput)
      pending = None
      if evaluate:
        loss = run.validation_loss(state.params)
        _check_finite(step, validation_loss=loss)
        writer.write(step, {"validation_loss": loss})
      if save:
        # A step's loss precedes its update, which may have broken the state.
        nats, _ = jax.device_get(run.eval_step(state.params, batch))
        _check_finite(step, **{"loss after the update": float(nats)})
        writer.flush()
        saver.save(state, config, run.batches.data_state(step))
      if stop:
        break
      throughput.restart(step)
    # A second SIGTERM must not end the process before the state is written.
    saved = saver.wait()
  if not saved:
    raise FailedRunError(
        f"the state after step {step} could not be written (see above); rerun"
        " the command to resume from the previous checkpoint."
    )
  if stop and step < train.steps:
    distributed.say(
        f"stopped by SIGTERM after step {step} of {train.steps} and saved;"
        " rerun the command to resume."
    )


def _is_due(every: int, step: int, last: int) -> bool:
  return step == last or (every > 0 and step % every == 0)


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


def _check_finite(step: int, **values: float) -> None:
  for name, value in values.items():
    if not math.isfinite(value):
      raise FailedRunError(
          f"{name} is {value} at step {step}; this state is not saved. Lower"
          " config.optimizer.learning_rate or increase"
          " config.optimizer.warmup_steps, and give another --workdir."
      )


def _description(run: Run) -> str:
  """Returns one line: the model, its data and its devices."""
  devices = jax.devices()
  mesh = " x ".join(f"{axis} {n}" for axis, n in run.mesh.shape.items())
  leaves = jax.tree.leaves(run.abstract_state.params)
  num_params = sum(math.prod(x.shape) for x in leaves)
  train, data = run.config.train, run.config.data
  source = data.task if isinstance(data, TaskConfig) else data.source
  return (
      f"{run.config.model.encoding}, {num_params:,} parameters, {source!r} in"
      f" rows of {data.row_length} tokens, {train.batch_size} rows per step, on"
      f" {len(devices)} x {devices[0].device_kind} ({mesh})"
  )
