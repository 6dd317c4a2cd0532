"""A run's workdir: its lock, its config, and the checkpoint to resume from."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from etils import epath

from dape_jax.checkpoint import store as checkpoint
from dape_jax.checkpoint.paths import is_remote, set_aside, step_folders
from dape_jax.checkpoint.state import TrainState
from dape_jax.config import DataConfig, ExperimentConfig
from dape_jax.config.dicts import experiment_from_dict, experiment_to_dict
from dape_jax.errors import ConfigError
from dape_jax.locking import locked
from dape_jax.parallel import distributed
from dape_jax.training.run import Run

# Settings that a resumed run may change, because they do not affect its result.
# The data may move: the checkpoint stores its fingerprint.
_LOCATIONS = frozenset({"data.dir", "data.source", "data.tokenizer"})
_FREE = _LOCATIONS | frozenset(
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


@contextlib.contextmanager
def writing_to(workdir: epath.Path) -> Iterator[None]:
  """Converts errors from writing to a workdir to a ConfigError."""
  try:
    yield
  except ImportError as e:  # No package for gs:// or another scheme.
    raise ConfigError(f"--workdir={workdir}: {e}.") from e
  except OSError as e:
    raise ConfigError(
        f"--workdir={workdir} cannot be written ({e.strerror or e}); give a"
        " writable folder."
    ) from e


@contextlib.contextmanager
def alone_in(workdir: epath.Path) -> Iterator[None]:
  """Locks a local workdir against other runs; every process calls this.

  Raises:
    ConfigError: another run uses it, or it cannot be written.
  """
  with contextlib.ExitStack() as stack:
    with distributed.failing_together():
      if jax.process_index() == 0 and not is_remote(workdir):
        message = (
            f"--workdir={workdir}: another process is training in it; wait for"
            " it, stop it, or give another folder."
        )
        with writing_to(workdir):
          stack.enter_context(locked(workdir / "lock", message))
    yield


def write_config(config: ExperimentConfig, workdir: epath.Path) -> None:
  """Writes workdir/config.json atomically."""
  temporary = workdir / "config.json.tmp"
  temporary.write_text(json.dumps(experiment_to_dict(config), indent=2) + "\n")
  temporary.replace(workdir / "config.json")


def first_state(run: Run, folder: epath.Path, skip_damaged: bool) -> TrainState:
  """Returns the state of the latest checkpoint, or a new one if there is none.

  Args:
    run: the run to resume or to start.
    folder: folder of its checkpoints.
    skip_damaged: move damaged checkpoints aside and try the previous one.

  Raises:
    ConfigError: the checkpoint was written with another config or other data.
    DamagedCheckpointError: it is damaged, and `skip_damaged` is False.
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
      distributed.say(f"resuming from {path}")
      return state
    if not skip_damaged:
      raise damaged or checkpoint.DamagedCheckpointError(
          f"checkpoint {path} cannot be read by another process of this run."
      )
    distributed.say(f"warning: {damaged}")
    if jax.process_index() == 0:
      moved = set_aside(path)
      distributed.say(f"moved it to {moved}; trying the previous checkpoint")
    distributed.all_agree(True)  # Waits until it has been moved.
  if found:
    distributed.say(
        f"no checkpoint in {folder} is intact: starting from scratch"
    )
  return run.new_state()


def _load(run: Run, path: epath.Path) -> TrainState:
  metadata = checkpoint.load_metadata(path)
  check_same_config(run.config, metadata["config"])
  run.batches.check_state(metadata["data_state"])
  return checkpoint.load_state(path, run.abstract_state, run.mesh)


def check_same_config(
    config: ExperimentConfig, stored: Mapping[str, Any]
) -> None:
  """Checks that a run may resume from a checkpoint with the stored config.

  Args:
    config: the run's config.
    stored: the checkpoint's config, see `experiment_to_dict`.

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


def check_same_run(run: Run) -> None:
  """Checks that all processes of a run have the same settings and data.

  Raises:
    ConfigError: they differ; every process raises it.
  """
  values = _flatten(experiment_to_dict(run.config))
  # Data may be in different places on different machines.
  settings = {k: v for k, v in values.items() if k not in _LOCATIONS}
  distributed.check_equal(
      json.dumps(settings, sort_keys=True, default=str),
      "the processes of this run have different settings: start all of them"
      " with the same command.",
  )
  data = [batches.data_state(0) for batches in (run.batches, run.validation)]
  distributed.check_equal(
      json.dumps(data, sort_keys=True, default=str),
      f"config.data.source={run.config.data.source} is not the same text in all"
      " processes of this run: prepare it once and copy it to all machines."
      if isinstance(run.config.data, DataConfig)
      else "the processes of this run have different tasks.",
  )


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  flat = {}
  for name, value in values.items():
    if isinstance(value, Mapping):
      flat.update(_flatten(value, f"{prefix}{name}."))
    else:
      flat[prefix + name] = value
  return flat
