"""The TPU compiler on machines without a TPU: environment and error messages."""

import importlib.util
import re

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
