"""Paths of the checkpoints of a run: workdir/checkpoints/STEP."""

import os
import pathlib

from etils import epath

from dape_jax.errors import ConfigError


def is_remote(path: str | os.PathLike[str]) -> bool:
  """Returns whether a path is a URL, such as gs://bucket/run."""
  return "://" in os.fspath(path)


def absolute_path(path: str | os.PathLike[str]) -> epath.Path:
  """Returns the absolute path of a local path; remote paths are unchanged."""
  if is_remote(path):
    return epath.Path(path)
  return epath.Path(pathlib.Path(path).expanduser().absolute())


def _is_step(path: epath.Path) -> bool:
  # A run's folder may have a number as its name, too.
  items = ("params", "metadata")
  return path.name.isdigit() and any((path / item).is_dir() for item in items)


def step_folders(folder: epath.Path) -> list[epath.Path]:
  """Returns the folders of finished steps, latest first.

  In a run's local `checkpoints` folder every numbered folder is a finished
  step: it is renamed into place when complete, so one without items is damaged.
  On gs:// an unfinished save already has its final name.
  """
  if not folder.is_dir():
    return []
  is_own = folder.name == "checkpoints" and not is_remote(folder)
  is_step = (lambda path: path.name.isdigit()) if is_own else _is_step
  steps = [path for path in folder.iterdir() if is_step(path)]
  return sorted(steps, key=lambda path: int(path.name), reverse=True)


def set_aside(step: epath.Path) -> epath.Path:
  """Moves a step to workdir/damaged_checkpoints; returns its new path."""
  folder = step.parent.parent / "damaged_checkpoints"
  folder.mkdir(parents=True, exist_ok=True)
  number = len(list(folder.iterdir()))
  return step.rename(folder / f"{step.name}_{number}")


def step_folder(path: str | os.PathLike[str]) -> epath.Path:
  """Returns the absolute folder of the latest finished step at `path`.

  Args:
    path: a training run's workdir, its `checkpoints` folder, or one step in it.

  Raises:
    ConfigError: there is no finished checkpoint.
  """
  path = absolute_path(path)
  if not path.exists():
    raise ConfigError(
        f"checkpoint {path} does not exist; give the --workdir of a training"
        " run."
    )
  if _is_step(path):
    return path
  steps = step_folders(path / "checkpoints") or step_folders(path)
  if not steps:
    raise ConfigError(
        f"{path} holds no finished checkpoint; give the --workdir of a training"
        " run that has saved one, its checkpoints folder or one step in it."
    )
  return steps[0]
