"""Multi-process runs: start-up, joint failure and preemption."""

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

# Set by launchers that JAX detects (Slurm's srun, Open MPI, GKE, Cloud TPU);
# the last is JAX's own.
_CLUSTER_VARIABLES = (
    "SLURM_STEP_NODELIST",
    "OMPI_MCA_orte_hnp_uri",
    "TPU_WORKER_HOSTNAMES",
    "TPU_PROCESS_ADDRESSES",
    "MEGASCALE_COORDINATOR_ADDRESS",
    "JAX_COORDINATOR_ADDRESS",
)


def _has_tpu() -> bool:
  # Asking JAX would initialize its backend before the processes connect.
  platforms = os.environ.get("JAX_PLATFORMS", "tpu").split(",")
  return "tpu" in platforms and bool(
      glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")
  )


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> None:
  """Connects the processes of this run, if several; call before other JAX code.

  Without arguments, `jax.distributed` detects the cluster from the environment
  (Cloud TPU, GKE, Slurm, Open MPI); elsewhere the run has one process.

  Args:
    coordinator_address: host:port of process 0, the same in every process.
    num_processes: number of processes in the run.
    process_id: index of this process, from 0.

  Raises:
    ConfigError: only some arguments are given, or the processes do not connect.
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
        f"the processes of this run did not connect ({e}); check"
        " --coordinator_address, --num_processes and --process_id."
    ) from e


def say(message: str) -> None:
  """Prints a line to stderr in process 0."""
  if jax.process_index() == 0:
    print(message, file=sys.stderr, flush=True)


def all_agree(condition: bool) -> bool:
  """Returns whether the condition is true in every process."""
  if jax.process_count() == 1:
    return condition
  return bool(multihost_utils.process_allgather(np.array(condition)).all())


@contextlib.contextmanager
def failing_together() -> Iterator[None]:
  """Raises ConfigError in every process if any process raises it.

  Every process enters the context. Without it, the remaining processes would
  wait minutes for the one that failed.

  Raises:
    ConfigError: the error of this process, or one that points to another
      process.
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
  """Checks that all processes have the same string; every process calls this.

  Raises:
    ConfigError: they differ; every process raises `message`.
  """
  if jax.process_count() == 1:
    return
  digest = hashlib.sha256(value.encode()).digest()
  numbers = np.frombuffer(digest, np.uint32)
  gathered = multihost_utils.process_allgather(numbers)
  if (gathered != gathered[0]).any():
    raise ConfigError(message)


class Preemption:
  """Context manager that detects preemption (SIGTERM).

  Spot TPUs, and Slurm at its time limit, send SIGTERM seconds before they end
  the process. The processes of a run agree on the last step, whichever of them
  gets the signal.
  """

  def __init__(self):
    self._is_signaled = False
    self._previous = None

  def __enter__(self) -> "Preemption":
    # Python handles signals only in the main thread. With several processes,
    # JAX handles SIGTERM.
    is_main = threading.current_thread() is threading.main_thread()
    if jax.process_count() == 1 and is_main:
      self._previous = signal.signal(signal.SIGTERM, self._on_signal)
    return self

  def __exit__(self, *_) -> None:
    if self._previous is not None:
      signal.signal(signal.SIGTERM, self._previous)

  def _on_signal(self, *_) -> None:
    self._is_signaled = True

  def reached(self, step: int) -> bool:
    """Returns whether to stop after `step`; every process calls this."""
    if jax.process_count() == 1:
      return self._is_signaled
    return multihost_utils.reached_preemption_sync_point(step)
