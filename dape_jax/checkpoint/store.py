"""Reads checkpoints. Only this file and saver.py import orbax.

`checkpoints/STEP/` holds the items `params`, `optimizer` and `metadata` (JSON:
config, encoding, data_state, versions, checksums). Arrays are stored unsharded
and load onto any mesh and number of processes.
"""

import contextlib
import gc
import io
import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from etils import epath
from orbax.checkpoint import v1 as ocp

from dape_jax.checkpoint.paths import step_folder
from dape_jax.checkpoint.state import TrainState, bit_checksum, init_params
from dape_jax.config import ExperimentConfig
from dape_jax.config.dicts import experiment_from_dict
from dape_jax.errors import ConfigError, first_cause
from dape_jax.parallel import partitioning


class DamagedCheckpointError(ConfigError):
  """Raised for a checkpoint that is unreadable or fails its checksum."""


def context() -> ocp.Context:
  """Returns the Orbax context used to read and write checkpoints."""
  registry = ocp.handlers.local_registry()
  # By default, Orbax stores a dict as a tree of arrays, which alters lists,
  # None and empty dicts.
  registry.add(ocp.handlers.JsonHandler, checkpointable_name="metadata")
  context = ocp.Context()
  context.checkpointables.registry = registry
  return context


def state_items(state: TrainState) -> dict[str, Any]:
  """Returns the checkpoint items of a state, by name."""
  return {
      "params": state.params,
      "optimizer": {"step": state.step, "opt_state": state.opt_state},
  }


def root_cause(error: BaseException) -> str:
  """Returns the root cause of an error as one short line."""
  error = first_cause(error)
  return f"{type(error).__name__}: {error}".split("\n")[0][:120]


def load_metadata(path: epath.Path) -> dict[str, Any]:
  """Returns the JSON metadata of the step folder `path`.

  Raises:
    ConfigError: the checkpoint is damaged.
  """
  metadata = _load(path, {"metadata": None})["metadata"]
  for key in ("config", "data_state", "checksums"):
    if not isinstance(metadata, dict) or not isinstance(
        metadata.get(key), dict
    ):
      raise _damaged(path, f"its metadata has no {key}")
  return metadata


def load_state(
    path: epath.Path, abstract_state: TrainState, mesh: jax.sharding.Mesh
) -> TrainState:
  """Loads the state from the step folder `path`, sharded over the mesh.

  Args:
    path: one of `step_folders`.
    abstract_state: `jax.eval_shape` of `init_state`.
    mesh: a mesh of any number of devices.

  Raises:
    ConfigError: the checkpoint is damaged or belongs to another model.
  """
  items = _restore(path, state_items(abstract_state), mesh)
  return TrainState(params=items["params"], **items["optimizer"])


def load_for_evaluation(
    path: str | os.PathLike[str],
) -> tuple[ExperimentConfig, Any, int]:
  """Loads the parameters of a checkpoint, on any number of devices.

  Args:
    path: a run's workdir or its `checkpoints` folder (loads the latest finished
      step), or one `checkpoints/STEP`.

  Returns:
    The experiment's config, the nested dict of float32 parameters (NumPy
    arrays, which are not tied to a mesh) and the step.

  Raises:
    ConfigError: there is no finished checkpoint, it is damaged, or its tensors
      do not match its config (the message names the first mismatch).
  """
  from dape_jax.models import Transformer  # pylint: disable=g-import-not-at-top

  folder = step_folder(path)
  config = experiment_from_dict(load_metadata(folder)["config"])
  init = lambda: init_params(Transformer(config.model), jax.random.key(0))
  expected = {"params": jax.eval_shape(init)}
  items = _restore(folder, expected, partitioning.make_mesh())
  return config, jax.device_get(items["params"]), int(folder.name)


def _damaged(path: epath.Path, reason: str) -> DamagedCheckpointError:
  return DamagedCheckpointError(
      f"checkpoint {path} is damaged or incomplete ({reason}). Restore it from"
      " a copy, or train with --skip_damaged to resume from the previous"
      " checkpoint."
  )


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
  # Coroutines of a failed load print tracebacks when garbage-collected.
  with contextlib.redirect_stderr(io.StringIO()), context():
    yield


def _load(path: epath.Path, items: Mapping[str, Any]) -> dict[str, Any]:
  """Loads items of one step; any error becomes a ConfigError."""
  with _quietly():
    try:
      return ocp.load_checkpointables(path, dict(items))
    except Exception as e:
      reason = root_cause(e)
    gc.collect()
  raise _damaged(path, reason)


def _restore(
    path: epath.Path, expected: Mapping[str, Any], mesh: jax.sharding.Mesh
) -> dict[str, Any]:
  """Returns the expected items of one step, sharded over the mesh."""
  _check_params_fit(path, expected["params"])
  expected = dict(expected)
  shardings = partitioning.state_sharding(expected, mesh)
  metadata = load_metadata(path)
  items = _load(path, partitioning.abstract(expected, shardings))
  for name, tree in items.items():
    if int(bit_checksum(tree)) != metadata["checksums"].get(name):
      raise _damaged(path, f"the checksum of {name} differs")
  return items


def _check_params_fit(path: epath.Path, expected: Any) -> None:
  """Checks the names and shapes of stored parameters against the model's."""
  with _quietly():
    try:
      stored = _shapes(ocp.checkpointables_metadata(path).metadata["params"])
    except Exception:
      return  # Damaged: the load that follows reports it.
  if not stored:  # Orbax only logs that it cannot read them.
    raise _damaged(path, "the list of its tensors cannot be read")
  wanted = _shapes(expected)
  for name in [*wanted, *stored]:
    if stored.get(name) != wanted.get(name):
      raise ConfigError(
          f"checkpoint {path}: tensor {name} has shape"
          f" {stored.get(name, 'none (it is missing)')}, but the model in its"
          f" config has {wanted.get(name, 'no such tensor')}; another version"
          " of the model wrote it."
      )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  return {
      jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape)
      for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }
