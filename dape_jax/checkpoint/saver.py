"""Writes checkpoints in the background.

Orbax renames a step's folder into place once it is complete, so an interrupted
save never looks finished.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import jax
from etils import epath
from orbax.checkpoint import v1 as ocp

from dape_jax import __version__
from dape_jax.checkpoint.paths import step_folders
from dape_jax.checkpoint.state import TrainState, bit_checksum
from dape_jax.checkpoint.store import context, root_cause, state_items
from dape_jax.parallel import distributed


class CheckpointSaver:
  """Context manager that saves checkpoints in the background; waits on exit.

  If a checkpoint cannot be written (for example on a full disk), the saver
  prints the reason and skips it; training continues, and earlier checkpoints
  stay.
  """

  def __init__(self, directory: epath.Path, keep: int, keep_every: int = 0):
    """Opens or creates the folder; removes leftovers of interrupted saves.

    Args:
      directory: absolute path of the folder of steps.
      keep: number of latest checkpoints to keep.
      keep_every: also keep checkpoints at multiples of this step; 0 turns this
        off.
    """
    policies = ocp.training.preservation_policies
    kept = [policies.LatestN(keep)]
    if keep_every:
      kept.append(policies.EveryNSteps(keep_every))
    self._directory = directory
    self._saving: int | None = None
    self._failed: list[int] = []
    self._failure: Exception | None = None
    # The training loop decides when to save.
    always = ocp.training.save_decision_policies.FixedIntervalPolicy(1)
    self._checkpointer = ocp.training.Checkpointer(
        directory,
        context=context(),
        save_decision_policy=always,
        preservation_policy=policies.AnyPreservationPolicy(kept),
        cleanup_tmp_directories=True,
    )

  def __enter__(self) -> "CheckpointSaver":
    return self

  def __exit__(self, *_) -> None:
    self.wait()
    self._checkpointer.close()
    self._remove_unfinished()

  def save(
      self,
      state: TrainState,
      config: Mapping[str, Any],
      data_state: Mapping[str, Any],
  ) -> None:
    """Starts a save; the state may be donated as soon as this returns.

    Every process calls this. config and data_state must be JSON-serializable.
    """
    self.wait()
    items = state_items(state)
    checksums = jax.device_get({k: bit_checksum(x) for k, x in items.items()})
    metadata = {
        "config": dict(config),
        "encoding": config["model"]["encoding"],
        "data_state": dict(data_state),
        "dape_jax_version": __version__,
        "jax_version": jax.__version__,
        "checksums": {name: int(value) for name, value in checksums.items()},
    }
    self._saving = int(jax.device_get(state.step))
    try:
      self._checkpointer.save_checkpointables_async(
          self._saving, {**items, "metadata": metadata}
      )
    except Exception as e:  # File systems raise errors of many types.
      self._failure = e

  def wait(self) -> bool:
    """Waits for the last save; returns whether all processes succeeded."""
    if self._saving is None:
      return True
    step, failure = self._saving, self._failure
    self._saving = self._failure = None
    if failure is None:
      try:
        self._checkpointer.wait()
      except Exception as e:
        failure = e
    if distributed.all_agree(failure is None):
      return True
    self._checkpointer.reload()
    self._failed.append(step)
    self._remove_unfinished()
    reason = "in another process" if failure is None else root_cause(failure)
    kept = step_folders(self._directory)
    latest = f"the latest is {kept[0]}" if kept else "there is none"
    distributed.say(
        f"step {step}: its checkpoint could not be written ({reason});"
        f" {latest}."
    )
    return False

  def _remove_unfinished(self) -> None:
    """Removes leftovers of failed saves."""
    if jax.process_index() != 0:
      return
    for step in self._failed:
      for folder in self._directory.glob(f"{step}.orbax-checkpoint-tmp*"):
        # Save threads may still add files; __exit__ tries again after they end.
        with contextlib.suppress(OSError):
          folder.rmtree(missing_ok=True)
