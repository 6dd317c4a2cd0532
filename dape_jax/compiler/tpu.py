"""The TPU compiler on machines without a TPU: its process and error messages."""

import contextlib
import importlib.util
import multiprocessing
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from dape_jax.errors import ConfigError

# Read by libtpu when it is loaded: do not query a metadata server, allow several
# processes, and do not warn that there is no TPU. The accelerator type is not used:
# every compilation names its topology.
ENVIRONMENT = {
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
# The compiler's two messages for programs that need too much memory.
_TOO_LARGE = re.compile(
    r"HLO temporaries \((\S+)\) exceeds available HBM \((\S+)\)"
    r"|Used (\S+) of (\S+) hbm"
)


def check_installed(flag: str) -> None:
  """Checks that the compiler is installed.

  Args:
    flag: flag that needs it, for the error message.

  Raises:
    ConfigError: it is not installed.
  """
  if importlib.util.find_spec("libtpu") is None:
    raise ConfigError(
        f"{flag} needs the TPU compiler: pip install libtpu (Linux on x86-64)."
    )


def needed_and_available(error: Exception) -> tuple[str, str] | None:
  """Returns the memory a program needs and the memory available, as "17.25G".

  None if the error has another cause.
  """
  found = _TOO_LARGE.search(str(error))
  return None if found is None else tuple(filter(None, found.groups()))


@contextlib.contextmanager
def compiler_process(
    function: Callable[..., None], *args: Any
) -> Iterator[Callable[..., Any]]:
  """Runs `function(send, *args)` in a process with the settings above.

  libtpu reads them once, when it is loaded. The process is killed on exit.

  Args:
    function: passes what the caller is to receive to `send`.
    *args: picklable.

  Yields:
    `receive(until)`, which returns the next object sent, or None once until(), if
    given, is true. It raises a ConfigError if the function does or if the process
    ends without sending.
  """
  context = multiprocessing.get_context("spawn")
  receiver, sender = context.Pipe(duplex=False)
  process = context.Process(target=_child, args=(sender, function, args))

  def receive(until: Callable[[], bool] = lambda: False) -> Any:
    while not receiver.poll(0.1):  # Also true if the process died.
      if until():
        return None
    try:
      value = receiver.recv()
    except EOFError as e:
      process.join()
      raise ConfigError(
          f"the TPU compiler failed (status {process.exitcode}, see above)."
      ) from e
    if isinstance(value, ConfigError):
      raise value
    return value

  process.start()
  sender.close()
  try:
    yield receive
  finally:
    process.kill()
    process.join()


def _child(connection, function, args) -> None:
  import jax

  os.environ.update(ENVIRONMENT)
  jax.config.update("jax_platforms", "cpu")
  try:
    function(connection.send, *args)
  except ConfigError as e:
    connection.send(e)
