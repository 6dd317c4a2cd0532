"""The TPU compiler on machines without a TPU: whether it is there, what it says."""

import importlib.util
import re

from dape_jax.errors import ConfigError

# libtpu reads these when it is loaded: it asks no metadata server, several processes
# may compile at once, and it does not warn that this machine has no TPU. (Which type
# is given does not matter: the chips to compile for are named each time.)
ENVIRONMENT = {
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
# The two ways in which it says that a program needs too much.
_TOO_LARGE = re.compile(
    r"HLO temporaries \((\S+)\) exceeds available HBM \((\S+)\)"
    r"|Used (\S+) of (\S+) hbm"
)


def check_installed(flag: str) -> None:
  """Checks that the compiler can be loaded.

  Raises:
    ConfigError: it cannot; the message begins with the flag that needs it.
  """
  if importlib.util.find_spec("libtpu") is None:
    raise ConfigError(
        f"{flag} needs the TPU compiler: pip install libtpu (Linux on x86-64)."
    )


def needed_and_available(error: Exception) -> tuple[str, str] | None:
  """Returns the memory that a program needs and that there is, as "17.25G".

  None if the error is not that the program needs too much.
  """
  found = _TOO_LARGE.search(str(error))
  return None if found is None else tuple(filter(None, found.groups()))
