"""Runs of several processes: joining them, and stopping them together."""

import contextlib
import glob
import hashlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

from dape_jax.errors import ConfigError

# Set by what starts several processes: Slurm's srun, Open MPI, GKE and Cloud TPU,
# and JAX's own.
_CLUSTER_VARIABLES = (
    "SLURM_STEP_NODELIST",
    "OMPI_MCA_orte_hnp_uri",
    "TPU_WORKER_HOSTNAMES",
    "TPU_PROCESS_ADDRESSES",
    "MEGASCALE_COORDINATOR_ADDRESS",
    "JAX_COORDINATOR_ADDRESS",
)


def _has_tpu() -> bool:
  # Not by JAX, which would start its backend before the processes have met.
  platforms = os.environ.get("JAX_PLATFORMS", "tpu").split(",")
  return "tpu" in platforms and bool(
      glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")
  )


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> None:
  """Joins the other processes of this run, if there are any.

  Before anything else of JAX. Without arguments it asks the environment, by
  `jax.distributed`: Cloud TPU, GKE, Slurm, Open MPI; where there is none of
  these, the process is alone.

  Args:
    coordinator_address: host:port of process 0, the same for all.
    num_processes: of the run.
    process_id: of this process, from 0.

  Raises:
    ConfigError: some but not all are given, or the processes do not meet.
  """
  given = (coordinator_address, num_processes, process_id)
  if all(value is None for value in given):
    if not (_has_tpu() or any(v in os.environ for v in _CLUSTER_VARIABLES)):
      return
  elif any(value is None for value in given):
    raise ConfigError(
        "--coordinator_address, --num_processes and --process_id belong"
        " together: give all three to every process, or none."
    )
  try:
    jax.distributed.initialize(*given)
  except (RuntimeError, ValueError) as e:
    raise ConfigError(
        f"the processes of this run did not meet ({e}); see"
        " --coordinator_address, --num_processes and --process_id."
    ) from e


def say(message: str) -> None:
  """Prints a line on stderr, in process 0."""
  if jax.process_index() == 0:
    print(message, file=sys.stderr, flush=True)


def all_agree(condition: bool) -> bool:
  """Returns whether the condition is true in all processes, in each of them."""
  if jax.process_count() == 1:
    return condition
  return bool(multihost_utils.process_allgather(np.array(condition)).all())


@contextlib.contextmanager
def failing_together() -> Iterator[None]:
  """Makes a ConfigError of any process end all of them; each enters the context.

  A process that went on alone would wait for the others for minutes.

  Raises:
    ConfigError: that of this process, or one that says that another has one.
  """
  error = None
  try:
    yield
  except ConfigError as e:
    error = e
  if not all_agree(error is None):
    raise error or ConfigError(
        "another process of this run failed; see its output."
    )


def check_equal(value: str, message: str) -> None:
  """Checks that all processes have the same text; each makes the call.

  Raises:
    ConfigError: one has another; `message` in all of them.
  """
  if jax.process_count() == 1:
    return
  digest = hashlib.sha256(value.encode()).digest()
  numbers = np.frombuffer(digest, np.uint32)
  gathered = multihost_utils.process_allgather(numbers)
  if (gathered != gathered[0]).any():
    raise ConfigError(message)


class Preemption:
  """Whether the run is told to stop; a context manager that catches SIGTERM.

  Machines that can be taken away (spot TPUs, Slurm at its time limit) send SIGTERM
  some seconds before. In a run of several processes all agree on the step after
  which to stop, whichever of them is told.
  """

  def __init__(self):
    self._told = False
    self._previous = None

  def __enter__(self) -> "Preemption":
    # Python lets the main thread alone catch signals.
    is_main = threading.current_thread() is threading.main_thread()
    if jax.process_count() == 1 and is_main:
      self._previous = signal.signal(signal.SIGTERM, self._tell)
    return self

  def __exit__(self, *_) -> None:
    if self._previous is not None:
      signal.signal(signal.SIGTERM, self._previous)

  def _tell(self, *_) -> None:
    self._told = True

  def reached(self, step: int) -> bool:
    """Returns whether to save and stop after `step`; each process asks at each."""
    if jax.process_count() == 1:
      return self._told
    return multihost_utils.reached_preemption_sync_point(step)
