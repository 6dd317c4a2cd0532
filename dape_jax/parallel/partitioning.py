"""Sharding of arrays over devices: the only file that names mesh axes.

Rows of a batch are split over "data" and "fsdp", the tokens of a row over
"context", and the state over "fsdp"; everything else is replicated. Heads are
never split, because encodings mix them. For ring attention the axis "context"
is named "ring".
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
# Smaller arrays, such as those of encodings, are replicated: splitting them
# saves nothing.
_MIN_SPLIT_SIZE = 2**14


def make_mesh(
    config: MeshConfig | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
  """Returns the mesh of all devices of all processes.

  Args:
    config: sizes of the axes; by default all devices are along "data".
    devices: the devices to use; by default all.

  Raises:
    ConfigError: the product of the sizes is not the number of devices.
  """
  config = config or MeshConfig()
  count = jax.device_count() if devices is None else len(devices)
  group = config.fsdp * config.context
  data = config.data if config.data > 0 else max(1, count // group)
  if data * group != count:
    raise ConfigError(
        f"config.mesh: data={config.data} x fsdp={config.fsdp} x"
        f" context={config.context} do not make {count} devices; choose fsdp x"
        f" context that divides {count}, and data=-1."
    )
  # Neighbors along a mesh axis are neighbors on the torus. A mesh axis may be
  # part of a torus axis, which jax.make_mesh rejects on most TPUs.
  placed = mesh_utils.create_device_mesh(
      (data, config.fsdp, config.context),
      devices,
      allow_split_physical_axes=True,
  )
  axes = (*_BATCH_AXES, "ring" if config.ring else "context")
  return Mesh(placed, axes, axis_types=(AxisType.Auto,) * 3)


@contextlib.contextmanager
def logical_axes(mesh: Mesh) -> Iterator[None]:
  """Maps the model's logical axes to mesh axes while a function is traced."""
  length = mesh.axis_names[-1]
  rules = [("batch", _BATCH_AXES), ("length", length)]
  if length == "ring":
    rules.append(("kv_length", length))
  with nn.logical_axis_rules(rules):
    yield


def replicated(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of replicated arrays."""
  return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of [microbatches, rows, T]."""
  return NamedSharding(
      mesh, PartitionSpec(None, _BATCH_AXES, mesh.axis_names[-1])
  )


def state_sharding(state: Any, mesh: Mesh) -> Any:
  """Returns the shardings of parameters or of an entire state, as a tree.

  A large array is split over "fsdp" along its largest divisible axis, but never
  along the axis of layers, because the model computes one layer at a time.

  Args:
    state: tree of arrays or of their shapes; axis 0 of those under a key
      "layers" is the layer.
    mesh: see `make_mesh`.
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


def abstract(tree: Any, shardings: Any) -> Any:
  """Returns `jax.ShapeDtypeStruct`s of a tree of arrays, with shardings."""
  return jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      tree,
      shardings,
  )


def check_batch(config: ExperimentConfig, mesh: Mesh) -> None:
  """Checks that microbatches split evenly over the devices.

  Raises:
    ConfigError: they do not; the message names the multiple to choose.
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
  """Returns a step's batch as global arrays; each process reads its own rows.

  Args:
    batches: batches of the run.
    step: index of the step, from 0.
    accumulation: number of microbatches A.
    mesh: see `make_mesh`.

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
  # The training loop disallows all other transfers to the devices.
  with jax.transfer_guard_host_to_device("allow"):
    return {
        name: jax.make_array_from_callback(
            shape, sharding, functools.partial(on_device, values)
        )
        for name, values in arrays.items()
    }
