"""Going on with a run: from which checkpoint, and whether a command may."""

import json
from collections.abc import Mapping
from typing import Any

import jax
from etils import epath

from dape_jax.checkpoint import store as checkpoint
from dape_jax.checkpoint.paths import set_aside, step_folders
from dape_jax.config import DataConfig, ExperimentConfig
from dape_jax.config.dicts import experiment_from_dict, experiment_to_dict
from dape_jax.errors import ConfigError
from dape_jax.parallel import distributed
from dape_jax.training.run import Run

# Settings that a resumed run may change: they do not change its result. Where the
# data lie is free, because the data's state says what they are.
_WHERE = frozenset({"data.dir", "data.source", "data.tokenizer"})
_FREE = _WHERE | frozenset(
    {
        "mesh.data",
        "mesh.fsdp",
        "mesh.context",
        "mesh.ring",
        "train.log_every",
        "train.eval_every",
        "train.eval_batches",
        "train.checkpoint_every",
        "train.keep_checkpoints",
        "train.keep_every",
    }
)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  flat = {}
  for name, value in values.items():
    if isinstance(value, Mapping):
      flat.update(_flatten(value, f"{prefix}{name}."))
    else:
      flat[prefix + name] = value
  return flat


def check_same_run(run: Run) -> None:
  """Checks that all processes of a run have the same settings and texts.

  Raises:
    ConfigError: they have not, in all of them.
  """
  values = _flatten(experiment_to_dict(run.config))
  # Where texts lie may differ from machine to machine.
  settings = {k: v for k, v in values.items() if k not in _WHERE}
  distributed.check_equal(
      json.dumps(settings, sort_keys=True, default=str),
      "the processes of this run have different settings: start all of them by the"
      " same command.",
  )
  texts = [batches.data_state(0) for batches in (run.batches, run.validation)]
  distributed.check_equal(
      json.dumps(texts, sort_keys=True, default=str),
      f"config.data.source={run.config.data.source} is not the same text for all"
      " processes of this run: prepare it once and copy it to all of them."
      if isinstance(run.config.data, DataConfig)
      else "the processes of this run have different tasks.",
  )


def check_same_config(
    config: ExperimentConfig, stored: Mapping[str, Any]
) -> None:
  """Checks that a run may go on with the checkpoint of a stored config.

  Args:
    config: of this command.
    stored: the checkpoint's, of `experiment_to_dict`.

  Raises:
    ConfigError: a setting that changes the result differs.
  """
  # Through JSON, so that a tuple equals the list it was stored as.
  new = _flatten(json.loads(json.dumps(experiment_to_dict(config))))
  old = _flatten(experiment_to_dict(experiment_from_dict(stored)))
  for name in sorted((new.keys() | old.keys()) - _FREE):
    if new.get(name) != old.get(name):
      raise ConfigError(
          f"config.{name}={new.get(name)!r} but the checkpoint in --workdir was"
          f" trained with {old.get(name)!r}; set it back, or give another"
          " --workdir."
      )


def _load(run: Run, path: epath.Path):
  metadata = checkpoint.load_metadata(path)
  check_same_config(run.config, metadata["config"])
  run.batches.check_state(metadata["data_state"])
  return checkpoint.load_state(path, run.abstract_state, run.mesh)


def first_state(run: Run, folder: epath.Path, skip_damaged: bool):
  """Returns the state that a run goes on from.

  Args:
    run: of this command.
    folder: of the checkpoints.
    skip_damaged: move damaged checkpoints aside until one is whole.

  Returns:
    The state of the latest checkpoint, or a new one if there is none.

  Raises:
    ConfigError: the checkpoint is of another config or other data.
    DamagedCheckpointError: it is damaged, and `skip_damaged` is not asked for.
  """
  found = step_folders(folder)
  for path in found:
    damaged = None
    with distributed.failing_together():
      try:
        state = _load(run, path)
      except checkpoint.DamagedCheckpointError as e:
        damaged = e
    if distributed.all_agree(damaged is None):
      distributed.say(f"going on from {path}")
      return state
    if not skip_damaged:
      raise damaged or checkpoint.DamagedCheckpointError(
          f"checkpoint {path} is damaged for another process of this run."
      )
    distributed.say(f"warning: {damaged}")
    if jax.process_index() == 0:
      distributed.say(
          f"moved to {set_aside(path)}; looking for the one before it"
      )
    distributed.all_agree(True)  # Not before it has been moved.
  if found:
    distributed.say(f"no checkpoint in {folder} is whole: starting anew")
  return run.new_state()
