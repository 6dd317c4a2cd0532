"""Where the checkpoints of a run lie: workdir/checkpoints/STEP."""

import os
import pathlib

from dape_jax.errors import ConfigError


def _is_step(path: pathlib.Path) -> bool:
  # A run, too, may have a number for a name.
  items = ("params", "metadata")
  return path.name.isdigit() and any((path / item).is_dir() for item in items)


def step_folder(path: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the absolute folder of the latest finished step at `path`.

  Args:
    path: a training run's workdir, its `checkpoints` folder, or one step in it.

  Raises:
    ConfigError: there is no finished checkpoint.
  """
  path = pathlib.Path(path).expanduser().absolute()
  if not path.exists():
    raise ConfigError(
        f"checkpoint {path} does not exist; give the --workdir of a training"
        " run."
    )
  if _is_step(path):
    return path
  for folder in (path / "checkpoints", path):
    if folder.is_dir():
      steps = [p for p in folder.iterdir() if _is_step(p)]
      if steps:
        return max(steps, key=lambda p: int(p.name))
  raise ConfigError(
      f"{path} holds no finished checkpoint; give the --workdir of a training"
      " run that has saved one, its checkpoints folder or one step in it."
  )
