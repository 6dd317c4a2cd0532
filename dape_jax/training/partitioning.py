"""How arrays lie on the devices: the only file that names mesh axes.

Training is data parallel: the windows of a batch are split over all devices of
all hosts, the state is replicated.
"""

from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dape_jax.errors import ConfigError


def make_mesh() -> Mesh:
  """Returns the mesh of all devices of all hosts, along one "data" axis."""
  return jax.make_mesh(
      (jax.device_count(),), ("data",), axis_types=(AxisType.Auto,)
  )


def replicated(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of the state: a whole copy on each device."""
  return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of [microbatches, windows, T]: windows are split."""
  return NamedSharding(mesh, PartitionSpec(None, "data"))


def check_batch_size(batch_size: int, accumulation: int, mesh: Mesh) -> None:
  """Checks that each microbatch splits evenly over the devices.

  Raises:
    ConfigError: it does not; the message gives the multiple to choose.
  """
  unit = accumulation * mesh.size
  if batch_size % unit:
    raise ConfigError(
        f"config.train.batch_size={batch_size} does not split evenly:"
        f" config.train.accumulation={accumulation} times {mesh.size} devices"
        f" need a multiple of {unit}."
    )


def global_batch(
    rows: Mapping[str, np.ndarray], accumulation: int, mesh: Mesh
) -> dict[str, jax.Array]:
  """Returns the batch over all devices from this process's rows.

  Args:
    rows: arrays [windows of this process, T].
    accumulation: number of microbatches A.
    mesh: of `make_mesh`.

  Returns:
    Arrays [A, windows of all processes / A, T], the windows split over devices.
  """
  sharding = batch_sharding(mesh)
  return {
      name: jax.make_array_from_process_local_data(
          sharding, values.reshape(accumulation, -1, values.shape[-1])
      )
      for name, values in rows.items()
  }
