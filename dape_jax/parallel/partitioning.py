"""How arrays lie on the devices: the only file that names mesh axes.

The batch is split over "data" and "fsdp", each row of it over "context", and the
state over "fsdp"; what is split over none of them is whole on every device. Heads
are never split, since encodings mix them. "context" is called "ring" where keys go
round it.
"""

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dape_jax.config import ExperimentConfig, MeshConfig
from dape_jax.data.batches import Batches
from dape_jax.errors import ConfigError

_BATCH_AXES = ("data", "fsdp")
# Smaller arrays are whole everywhere: to split them saves nothing, and what
# encodings have is among them.
_MIN_SPLIT_SIZE = 2**14


def make_mesh(
    config: MeshConfig | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
  """Returns the mesh of all devices of all processes.

  Args:
    config: sizes of its axes; by default all devices along "data".
    devices: others than all there are.

  Raises:
    ConfigError: the sizes do not make the number of devices.
  """
  config = config or MeshConfig()
  count = jax.device_count() if devices is None else len(devices)
  group = config.fsdp * config.context
  data = config.data if config.data > 0 else max(1, count // group)
  if data * group != count:
    raise ConfigError(
        f"config.mesh: data={config.data} x fsdp={config.fsdp} x"
        f" context={config.context} do not make {count} devices; choose fsdp x"
        f" context among the divisors of {count}, and data=-1."
    )
  # Neighbours on an axis are neighbours on the torus; an axis may be a part of one of
  # the torus, which jax.make_mesh refuses on most TPUs.
  placed = mesh_utils.create_device_mesh(
      (data, config.fsdp, config.context),
      devices,
      allow_split_physical_axes=True,
  )
  axes = (*_BATCH_AXES, "ring" if config.ring else "context")
  return Mesh(placed, axes, axis_types=(AxisType.Auto,) * 3)


@contextlib.contextmanager
def logical_axes(mesh: Mesh) -> Iterator[None]:
  """Within it, in a traced function, the model's axes lie on those of the mesh."""
  length = mesh.axis_names[-1]
  rules = [("batch", _BATCH_AXES), ("length", length)]
  if length == "ring":
    rules.append(("kv_length", length))
  with nn.logical_axis_rules(rules):
    yield


def replicated(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of what is whole on each device."""
  return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of [microbatches, rows, T]."""
  return NamedSharding(
      mesh, PartitionSpec(None, _BATCH_AXES, mesh.axis_names[-1])
  )


def state_sharding(state: Any, mesh: Mesh) -> Any:
  """Returns a tree of the shardings of parameters or of a whole state.

  A large array is split over "fsdp" along its largest axis that divides, but not
  along the axis of layers, of which one at a time is computed with.

  Args:
    state: tree of arrays or of their shapes; of those under a key "layers", the
      layers are axis 0.
    mesh: of `make_mesh`.
  """
  parts = mesh.shape["fsdp"]

  def sharding(path, x):
    is_layers = any(getattr(entry, "key", None) == "layers" for entry in path)
    axes = [
        axis
        for axis in range(int(is_layers), len(x.shape))
        if x.shape[axis] % parts == 0
    ]
    if parts == 1 or math.prod(x.shape) < _MIN_SPLIT_SIZE or not axes:
      return replicated(mesh)
    largest = max(axes, key=lambda axis: x.shape[axis])
    return NamedSharding(mesh, PartitionSpec(*[None] * largest, "fsdp"))

  return jax.tree_util.tree_map_with_path(sharding, state)


def check_batch(config: ExperimentConfig, mesh: Mesh) -> None:
  """Checks that each microbatch splits evenly over the devices.

  Raises:
    ConfigError: it does not; the message gives the multiple to choose.
  """
  groups = math.prod(mesh.shape[axis] for axis in _BATCH_AXES)
  batch_size, parts = config.train.batch_size, config.train.accumulation
  if batch_size % (parts * groups):
    raise ConfigError(
        f"config.train.batch_size={batch_size} does not split evenly:"
        f" config.train.accumulation={parts} times {groups} groups of devices"
        f" need a multiple of {parts * groups}."
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

  arrays = batches.rows(step, rows)
  # The one transfer to the devices that the training loop means to make.
  with jax.transfer_guard_host_to_device("allow"):
    return {
        name: jax.make_array_from_callback(
            shape, sharding, functools.partial(on_device, values)
        )
        for name, values in arrays.items()
    }
