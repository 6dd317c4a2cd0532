"""Reading checkpoints; with `checkpoint_saver`, all that imports orbax.

`checkpoints/STEP/` has the items `params`, `optimizer` and `metadata` (JSON:
config, encoding, data_state, versions, checksums). Arrays are stored as they are,
not as they lay on devices, and come back on any mesh and number of processes.
"""

import contextlib
import gc
import io
import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath
from orbax.checkpoint import v1 as ocp

from dape_jax.checkpoint.paths import step_folder
from dape_jax.checkpoint.state import TrainState, bit_checksum
from dape_jax.config import ExperimentConfig
from dape_jax.config.dicts import experiment_from_dict
from dape_jax.errors import ConfigError, first_cause
from dape_jax.parallel import partitioning


class DamagedCheckpointError(ConfigError):
  """A checkpoint that cannot be read as it was written."""


def context() -> ocp.Context:
  """Returns orbax's settings for all checkpoints."""
  registry = ocp.handlers.local_registry()
  # Without this, a dict is stored as a tree of arrays: lists, None and empty
  # dicts would come back changed.
  registry.add(ocp.handlers.JsonHandler, checkpointable_name="metadata")
  context = ocp.Context()
  context.checkpointables.registry = registry
  return context


def state_items(state: TrainState) -> dict[str, Any]:
  """Returns what is stored of a state, by name."""
  return {
      "params": state.params,
      "optimizer": {"step": state.step, "opt_state": state.opt_state},
  }


def _damaged(path: epath.Path, reason: str) -> DamagedCheckpointError:
  return DamagedCheckpointError(
      f"checkpoint {path} is damaged or incomplete ({reason}). Copy it anew, or"
      " train with --skip_damaged to go on from the one before it."
  )


def root_cause(error: BaseException) -> str:
  """Returns what first went wrong, in one short line."""
  error = first_cause(error)
  return f"{type(error).__name__}: {error}".split("\n")[0][:120]


def _load(path: epath.Path, items: Mapping[str, Any]) -> dict[str, Any]:
  """Loads the items of one step; whatever goes wrong is a ConfigError."""
  # Coroutines of a failed load print tracebacks when they are collected.
  with contextlib.redirect_stderr(io.StringIO()), context():
    try:
      return ocp.load_checkpointables(path, dict(items))
    except Exception as e:
      reason = root_cause(e)
    gc.collect()
  raise _damaged(path, reason)


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {
      jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape)
      for path, leaf in leaves
  }


def _check_params_fit(path: epath.Path, expected: Any) -> None:
  """Checks the stored parameters' names and shapes against the model's."""
  with contextlib.redirect_stderr(io.StringIO()), context():
    try:
      stored = _shapes(ocp.checkpointables_metadata(path).metadata["params"])
    except Exception:
      return  # Damaged: the load that follows says so.
  if not stored:  # Orbax logs that it cannot read them, and goes on.
    raise _damaged(path, "the list of its tensors cannot be read")
  wanted = _shapes(expected)
  for name in [*wanted, *stored]:
    if stored.get(name) != wanted.get(name):
      raise ConfigError(
          f"checkpoint {path}: tensor {name} has shape"
          f" {stored.get(name, 'none (it is missing)')}, the model of its config"
          f" has {wanted.get(name, 'no such tensor')}; it was written by another"
          " version of the model."
      )


def _restore(
    path: epath.Path, expected: Mapping[str, Any], mesh: jax.sharding.Mesh
) -> dict[str, Any]:
  """Returns the expected items of one step, split over the mesh as a state."""
  _check_params_fit(path, expected["params"])
  abstract = jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      dict(expected),
      partitioning.state_sharding(dict(expected), mesh),
  )
  metadata = load_metadata(path)
  items = _load(path, abstract)
  for name, tree in items.items():
    if int(bit_checksum(tree)) != metadata["checksums"].get(name):
      raise _damaged(path, f"the checksum of {name} differs")
  return items


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
  """Returns the state of the step folder `path` on the mesh.

  Args:
    path: of `step_folders`.
    abstract_state: `jax.eval_shape` of `init_state`.
    mesh: of any number of devices.

  Raises:
    ConfigError: the checkpoint is damaged or of another model.
  """
  items = _restore(path, state_items(abstract_state), mesh)
  return TrainState(params=items["params"], **items["optimizer"])


def load_for_evaluation(
    path: str | os.PathLike[str],
) -> tuple[ExperimentConfig, Any, int]:
  """Loads the parameters of a checkpoint, on any number of devices.

  Args:
    path: a training run's workdir, its `checkpoints` folder (the latest
      finished step is taken) or `checkpoints/STEP`.

  Returns:
    The experiment's config, the nested dict of float32 parameters (NumPy, for
    any device: an array of a mesh takes the mesh along) and the step.

  Raises:
    ConfigError: there is no finished checkpoint, it is damaged, or its tensors
      do not fit its config (the first one that does not is named).
  """
  from dape_jax.models import Transformer  # pylint: disable=g-import-not-at-top

  folder = step_folder(path)
  config = experiment_from_dict(load_metadata(folder)["config"])
  model = Transformer(config.model)
  tokens_BxT = jnp.zeros((1, 1), jnp.int32)
  variables = jax.eval_shape(model.init, jax.random.key(0), tokens_BxT)
  items = _restore(
      folder, {"params": variables["params"]}, partitioning.make_mesh()
  )
  return config, jax.device_get(items["params"]), int(folder.name)
