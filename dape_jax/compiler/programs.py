"""Lowers a config's training and evaluation steps for TPU topologies."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from dape_jax.config import ExperimentConfig, MeshConfig
from dape_jax.errors import ConfigError
from dape_jax.evaluation import perplexity
from dape_jax.evaluation.extrapolation import Settings
from dape_jax.models import Transformer
from dape_jax.parallel import partitioning
from dape_jax.training.flops import chip_of, flops_per_token
from dape_jax.training.run import Program

_BATCH = ("inputs", "targets", "segment_ids", "positions", "loss_weights")


def _devices(topology: str) -> list[jax.Device]:
  try:
    return topologies.get_topology_desc(topology, platform="tpu").devices
  except Exception as e:  # The plugin raises several types.
    reason = str(e).split("\n")[0][:160]
    raise ConfigError(
        f"--topology={topology}: unknown to the TPU compiler ({reason}); give for"
        " example v5e:4x4, v5p:4x4x4 or v6e:8x8."
    ) from e


def _bytes_on_a_chip(tree: Any) -> int:
  """Returns the bytes of sharded arrays that each device holds."""
  return sum(
      math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
      for x in jax.tree.leaves(tree)
  )


def _batch(config: ExperimentConfig, mesh: jax.sharding.Mesh):
  parts = config.train.accumulation
  rows = config.train.batch_size // parts
  shape = (parts, rows, config.data.row_length)
  sharding = partitioning.batch_sharding(mesh)
  dtypes = dict.fromkeys(_BATCH, jnp.int32) | {"loss_weights": jnp.float32}
  return {
      name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
      for name, dtype in dtypes.items()
  }


def _train_program(config, devices):
  """Returns the lowered step, bytes of its parts, and FLOPs per chip."""
  mesh = partitioning.make_mesh(config.mesh, devices)
  with jax.set_mesh(mesh):
    program = Program(config, mesh)
    state, batch = program.abstract_state, _batch(config, mesh)
    lowered = program.train_step.lower(state, batch)
  tokens = config.train.batch_size * config.data.row_length
  flops = tokens * flops_per_token(
      config.model, state.params, config.data.row_length
  )
  if config.model.remat == "full":
    flops *= 4 / 3
  parts = {
      "parameters": _bytes_on_a_chip(state.params),
      "optimizer": _bytes_on_a_chip(state.opt_state),
      "batch": _bytes_on_a_chip(batch),
  }
  return lowered, parts, flops / len(devices)


def _eval_program(config, devices, length: int):
  """Returns the same for evaluating one chunk on one chip."""
  mesh = partitioning.make_mesh(MeshConfig(), devices[:1])
  place = partitioning.replicated(mesh)
  on_chip = lambda tree: jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree
  )
  model = Transformer(config.model).at_length(length)
  tokens = jax.ShapeDtypeStruct((1, Settings.chunk), jnp.int32)
  params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
  cache = jax.eval_shape(lambda: model.empty_cache(1, length))
  arguments = on_chip((params, cache, *3 * [tokens]))
  with jax.set_mesh(mesh):
    lowered = perplexity.make_step(model).lower(*arguments)
  parts = {
      "parameters": _bytes_on_a_chip(arguments[0]),
      "cache": _bytes_on_a_chip(arguments[1]),
  }
  # A third of a training step; each token of the chunk attends to the cache.
  per_token = flops_per_token(config.model, params, 2 * length) / 3
  return lowered, parts, Settings.chunk * per_token


def lower(
    config: ExperimentConfig, topology: str, eval_length: int
) -> tuple[jax.stages.Lowered, dict[str, Any]]:
  """Returns the lowered program and the report known before compiling.

  Args:
    config, topology, eval_length: see `ahead_of_time.compile_for`.

  Raises:
    ConfigError: the topology or the mesh is invalid.
  """
  devices = _devices(topology)
  chip = chip_of(devices[0].device_kind)
  if chip is None or chip.memory is None or chip.link_bandwidth is None:
    raise ConfigError(
        f"--topology={topology}: dape_jax/training/flops.py has no data sheet of"
        f" {devices[0].device_kind}; add it."
    )
  if eval_length:
    lowered, parts, flops = _eval_program(config, devices, eval_length)
  else:
    lowered, parts, flops = _train_program(config, devices)
  return lowered, {
      "topology": topology,
      "device_kind": devices[0].device_kind,
      "chips": 1 if eval_length else len(devices),
      "program": "eval" if eval_length else "train",
      "encoding": config.model.encoding,
      "num_layers": config.model.num_layers,
      "width": config.model.width,
      "length": eval_length or config.data.row_length,
      "batch_size": 1 if eval_length else config.train.batch_size,
      "remat": config.model.remat,
      "parts": parts,
      "limit": chip.memory,
      "flops": flops,
  }
