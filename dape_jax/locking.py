"""A file lock that gives one process exclusive access to a folder."""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from dape_jax.errors import ConfigError


@contextlib.contextmanager
def locked(file: str | os.PathLike[str], message: str) -> Iterator[None]:
  """Holds an exclusive file lock until the context or the process ends.

  Does nothing on file systems without locks.

  Args:
    file: lock file, created if missing and never deleted.
    message: error message if another process holds the lock.

  Raises:
    ConfigError: another process holds it.
    OSError: the file cannot be created.
  """
  with open(file, "a") as stream:
    try:
      fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
      raise ConfigError(message) from e
    except OSError:
      pass
    yield
