"""How arrays lie on the devices: the only file that names mesh axes.

Training is data parallel: the windows of a batch are split over all devices of
all hosts, the state is replicated.
"""

import functools

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dape_jax.data.batches import Batches
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
    batches: Batches, step: int, accumulation: int, mesh: Mesh
) -> dict[str, jax.Array]:
  """Returns the batch of a step on the devices; each process reads its rows.

  Args:
    batches: of the run.
    step: counted from 0.
    accumulation: number of microbatches A.
    mesh: of `make_mesh`.

  Returns:
    Arrays [A, B / A, T], row b of the batch at [b // (B / A), b % (B / A)].
  """
  shape = (accumulation, batches.batch_size // accumulation, batches.row_length)
  sharding = batch_sharding(mesh)
  numbers = np.arange(batches.batch_size).reshape(shape[:2])
  places = sharding.addressable_devices_indices_map(shape)
  needed = {row for place in places.values() for row in numbers[place[:2]].flat}
  rows = sorted(needed)
  at = np.zeros(batches.batch_size, np.int32)
  at[rows] = np.arange(len(rows))

  def on_device(values, place):
    return values[at[numbers[place[:2]]]][..., place[2]]

  return {
      name: jax.make_array_from_callback(
          shape, sharding, functools.partial(on_device, values)
      )
      for name, values in batches.rows(step, rows).items()
  }
