"""The folder of a run: who writes to it, and what cannot be written."""

import contextlib
import json
from collections.abc import Iterator

import jax
from etils import epath

from dape_jax.checkpoint.paths import is_remote
from dape_jax.config import ExperimentConfig
from dape_jax.config.dicts import experiment_to_dict
from dape_jax.errors import ConfigError
from dape_jax.locking import locked
from dape_jax.parallel import distributed


@contextlib.contextmanager
def writing_to(workdir: epath.Path) -> Iterator[None]:
  """Turns what fails in writing to a workdir into a ConfigError."""
  try:
    yield
  except ImportError as e:  # Of what reads gs:// and so on.
    raise ConfigError(f"--workdir={workdir}: {e}.") from e
  except OSError as e:
    raise ConfigError(
        f"--workdir={workdir} cannot be written ({e.strerror or e}); give a"
        " folder that can."
    ) from e


def write_config(config: ExperimentConfig, workdir: epath.Path) -> None:
  """Writes workdir/config.json, whole or not at all."""
  temporary = workdir / "config.json.tmp"
  temporary.write_text(json.dumps(experiment_to_dict(config), indent=2) + "\n")
  temporary.replace(workdir / "config.json")


@contextlib.contextmanager
def alone_in(workdir: epath.Path) -> Iterator[None]:
  """Keeps other runs out of a local workdir; all processes make the call.

  Raises:
    ConfigError: another run is in it, or it cannot be written.
  """
  with contextlib.ExitStack() as stack:
    with distributed.failing_together():
      if jax.process_index() == 0 and not is_remote(workdir):
        message = (
            f"--workdir={workdir}: another process trains in it; wait for it, stop"
            " it, or give another folder."
        )
        with writing_to(workdir):
          stack.enter_context(locked(workdir / "lock", message))
    yield
