"""Checkpoints on disk: the only file importing orbax.

`checkpoints/STEP/` has the items `params`, `optimizer` and `metadata` (JSON:
config, data_state, dape_jax_version, checksums). Orbax renames a step's folder
into place when it is complete: a killed save leaves nothing that looks finished.
"""

import contextlib
import gc
import io
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from orbax.checkpoint import v1 as ocp

import dape_jax
from dape_jax.config import ExperimentConfig
from dape_jax.config_dict import experiment_from_dict
from dape_jax.errors import ConfigError, first_cause
from dape_jax.training import partitioning
from dape_jax.training.checkpoint_paths import step_folder
from dape_jax.training.state import TrainState, bit_checksum


def _context() -> ocp.Context:
  registry = ocp.handlers.local_registry()
  # Without this, a dict is stored as a tree of arrays: lists, None and empty
  # dicts would come back changed.
  registry.add(ocp.handlers.JsonHandler, checkpointable_name="metadata")
  context = ocp.Context()
  context.checkpointables.registry = registry
  return context


def _items(state: TrainState) -> dict[str, Any]:
  return {
      "params": state.params,
      "optimizer": {"step": state.step, "opt_state": state.opt_state},
  }


def _damaged(path: pathlib.Path, reason: str) -> ConfigError:
  return ConfigError(
      f"checkpoint {path} is damaged or incomplete ({reason}). Delete this"
      " folder to go on from the one before it, or copy it anew."
  )


def _root_cause(error: BaseException) -> str:
  error = first_cause(error)
  return f"{type(error).__name__}: {error}".split("\n")[0][:120]


def _load(path: pathlib.Path, items: Mapping[str, Any]) -> dict[str, Any]:
  """Loads the items of one step; whatever goes wrong is a ConfigError."""
  # Coroutines of a failed load print tracebacks when they are collected.
  with contextlib.redirect_stderr(io.StringIO()), _context():
    try:
      return ocp.load_checkpointables(path, dict(items))
    except Exception as e:
      reason = _root_cause(e)
    gc.collect()
  raise _damaged(path, reason)


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {
      jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape)
      for path, leaf in leaves
  }


def _check_params_fit(path: pathlib.Path, expected: Any) -> None:
  """Checks the stored parameters' names and shapes against the model's."""
  with contextlib.redirect_stderr(io.StringIO()), _context():
    try:
      stored = _shapes(ocp.checkpointables_metadata(path).metadata["params"])
    except Exception:
      return  # Damaged: the load that follows says so.
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
    path: pathlib.Path, expected: Mapping[str, Any], mesh: jax.sharding.Mesh
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


class Checkpoints:
  """The checkpoints of one run; a context manager that waits for the saves."""

  def __init__(self, directory: pathlib.Path, keep: int):
    """Opens or creates the folder; removes what killed saves have left.

    Args:
      directory: absolute path of the folder of steps.
      keep: how many of the latest stay on disk.
    """
    policies = ocp.training.save_decision_policies
    self._checkpointer = ocp.training.Checkpointer(
        directory,
        context=_context(),
        # The loop decides when.
        save_decision_policy=policies.FixedIntervalPolicy(1),
        preservation_policy=ocp.training.preservation_policies.LatestN(keep),
        cleanup_tmp_directories=True,
    )

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, *_) -> None:
    self._checkpointer.close()

  @property
  def latest(self) -> pathlib.Path | None:
    """The folder of the latest finished step, None when there is none."""
    latest = self._checkpointer.latest
    return None if latest is None else pathlib.Path(latest.path)

  def save(
      self,
      state: TrainState,
      config: Mapping[str, Any],
      data_state: Mapping[str, Any],
  ) -> None:
    """Starts to save; the state may be donated as soon as this returns.

    All processes call this; config and data_state are their JSON-able dicts.
    """
    items = _items(state)
    metadata = {
        "config": dict(config),
        "data_state": dict(data_state),
        "dape_jax_version": dape_jax.__version__,
        "checksums": {
            name: int(bit_checksum(tree)) for name, tree in items.items()
        },
    }
    self._checkpointer.save_checkpointables_async(
        int(state.step), {**items, "metadata": metadata}
    )


def load_metadata(path: pathlib.Path) -> dict[str, Any]:
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
    path: pathlib.Path, abstract_state: TrainState, mesh: jax.sharding.Mesh
) -> TrainState:
  """Returns the state of the step folder `path` on the mesh.

  Args:
    path: `Checkpoints.latest`.
    abstract_state: `jax.eval_shape` of `init_state`.
    mesh: of any number of devices.

  Raises:
    ConfigError: the checkpoint is damaged or of another model.
  """
  items = _restore(path, _items(abstract_state), mesh)
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
