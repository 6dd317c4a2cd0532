"""Folders that one process at a time may write to."""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from dape_jax.errors import ConfigError


@contextlib.contextmanager
def locked(file: str | os.PathLike[str], message: str) -> Iterator[None]:
  """Holds a lock for as long as the context lasts; it ends with the process.

  On file systems that know no locks it holds nothing.

  Args:
    file: made if missing, and left there.
    message: of the error.

  Raises:
    ConfigError: another process holds it.
    OSError: the file cannot be made.
  """
  with open(file, "a") as stream:
    try:
      fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
      raise ConfigError(message) from e
    except OSError:
      pass
    yield
