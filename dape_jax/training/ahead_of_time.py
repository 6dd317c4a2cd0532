"""The programs of a config, compiled for chips that need not be there."""

import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from dape_jax import tpu_compiler
from dape_jax.config import ExperimentConfig, MeshConfig
from dape_jax.errors import ConfigError
from dape_jax.evaluation import perplexity
from dape_jax.evaluation.extrapolation import Settings
from dape_jax.models import Transformer
from dape_jax.training import partitioning
from dape_jax.training.chips import chip_of
from dape_jax.training.flops import flops_per_token
from dape_jax.training.program_costs import program_costs
from dape_jax.training.run import Program

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_DTYPES = {
    "inputs": jnp.int32,
    "targets": jnp.int32,
    "segment_ids": jnp.int32,
    "positions": jnp.int32,
    "loss_weights": jnp.float32,
}


def _devices(topology: str) -> list[jax.Device]:
  try:
    return topologies.get_topology_desc(topology, platform="tpu").devices
  except Exception as e:  # Whatever the plugin raises for a name.
    reason = str(e).split("\n")[0][:160]
    raise ConfigError(
        f"--topology={topology}: the TPU compiler knows no such chips"
        f" ({reason}); for example v5e:4x4, v5p:4x4x4, v6e:8x8."
    ) from e


def _bytes_on_a_chip(tree: Any) -> int:
  """Returns the bytes that each device holds of arrays with shardings."""
  return sum(
      math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
      for x in jax.tree.leaves(tree)
  )


def _batch(config: ExperimentConfig, mesh: jax.sharding.Mesh):
  parts = config.train.accumulation
  rows = config.train.batch_size // parts
  shape = (parts, rows, config.data.row_length)
  sharding = partitioning.batch_sharding(mesh)
  return {
      name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
      for name, dtype in _DTYPES.items()
  }


def _train_program(config, devices):
  """Returns the lowered step, bytes of its parts, and FLOPs of a chip."""
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
  """Returns the lowered reading of one chunk on one chip, as above."""
  mesh = partitioning.make_mesh(MeshConfig(), devices[:1])
  place = partitioning.replicated(mesh)
  there = lambda tree: jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree
  )
  model = Transformer(config.model).at_length(length)
  tokens = jax.ShapeDtypeStruct((1, Settings.chunk), jnp.int32)
  params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
  cache = jax.eval_shape(lambda: model.empty_cache(1, length))
  arguments = there((params, cache, *3 * [tokens]))
  with jax.set_mesh(mesh):
    lowered = perplexity.make_step(model).lower(*arguments)
  parts = {
      "parameters": _bytes_on_a_chip(arguments[0]),
      "cache": _bytes_on_a_chip(arguments[1]),
  }
  # A third of a training step's, and each token of the chunk sees the cache.
  per_token = flops_per_token(config.model, params, 2 * length) / 3
  return lowered, parts, Settings.chunk * per_token


def compile_for(
    config: ExperimentConfig, topology: str, eval_length: int = 0
) -> dict[str, Any]:
  """Returns what the TPU compiler says of a config, of one chip.

  Args:
    config: with the mesh in question.
    topology: name of the chips, "v5p:4x4x4".
    eval_length: 0 is the training step; else the step that reads a chunk of a text
      of so many tokens, on one chip.

  Returns:
    What JSON has: topology, chips, program, encoding, num_layers, width, length,
    batch_size (rows), remat, parts (bytes by name), peak and limit (bytes), fits,
    flops, memory_bytes, sent (bytes by kind of collective), seconds (of the
    roofline: compute, memory, collectives), has_unknown_loops and kernel (whether
    attention is the Pallas kernel). Of a program that does not fit the compiler
    says the peak only.

  Raises:
    ConfigError: the topology or the mesh does not fit.
  """
  devices = _devices(topology)
  if eval_length:
    lowered, parts, flops = _eval_program(config, devices, eval_length)
  else:
    lowered, parts, flops = _train_program(config, devices)
  chip = chip_of(devices[0].device_kind)
  if chip is None or chip.memory is None or chip.link_bandwidth is None:
    raise ConfigError(
        f"--topology={topology}: what a {devices[0].device_kind} can do is not in"
        " dape_jax/training/chips.py; add it there."
    )
  report = {
      "topology": topology,
      "chips": 1 if eval_length else len(devices),
      "program": "eval" if eval_length else "train",
      "encoding": config.model.encoding,
      "remat": config.model.remat,
      "num_layers": config.model.num_layers,
      "width": config.model.width,
      "length": eval_length or config.data.row_length,
      "batch_size": 1 if eval_length else config.train.batch_size,
      "parts": parts,
      "limit": chip.memory,
      "flops": flops,
  }
  try:
    compiled = lowered.compile()
  except Exception as e:
    sizes = tpu_compiler.needed_and_available(e)
    if sizes is None:
      raise
    needed, limit = sizes
    state = sum(parts.values()) if "HLO temporaries" in str(e) else 0
    return report | {
        "peak": state + _number(needed),
        "limit": _number(limit),
        "fits": False,
    }
  memory = compiled.memory_analysis()
  text = compiled.as_text()
  costs = program_costs(text)
  peak = (
      memory.argument_size_in_bytes
      + memory.output_size_in_bytes
      - memory.alias_size_in_bytes
      + memory.temp_size_in_bytes
      + memory.generated_code_size_in_bytes
  )
  return report | {
      "parts": parts | {"temporaries": memory.temp_size_in_bytes},
      "peak": peak,
      "fits": bool(peak <= chip.memory),
      "memory_bytes": costs.memory,
      "sent": costs.sent,
      "seconds": {
          "compute": flops / chip.flops,
          "memory": costs.memory / chip.memory_bandwidth,
          "collectives": sum(costs.sent.values()) / chip.link_bandwidth,
      },
      "has_unknown_loops": costs.has_unknown_loops,
      "kernel": "tpu_custom_call" in text,
  }


def compile_largest_batch(
    config: ExperimentConfig, topology: str
) -> dict[str, Any]:
  """Returns what `compile_for` says of the largest batch that fits.

  Tried are config.train.batch_size times powers of two, each compiled.

  Args:
    config: as for `compile_for`.
    topology: as for `compile_for`.

  Returns:
    The report, with the peak of twice the batch (bytes) as twice_peak; or, if
    none fits, the report of the smallest that the mesh can split, without it.

  Raises:
    ConfigError: as `compile_for`.
  """
  reports = {}

  def compile_rows(rows: int) -> dict[str, Any]:
    if rows not in reports:
      train = dataclasses.replace(config.train, batch_size=rows)
      reports[rows] = compile_for(
          dataclasses.replace(config, train=train), topology
      )
    return reports[rows]

  rows = config.train.batch_size
  report = compile_rows(rows)
  if report["fits"]:
    # Temporaries are nearly proportional to the rows: a guess, tried below.
    temporaries = report["parts"]["temporaries"]
    times = 1 + (report["limit"] - report["peak"]) / temporaries
    rows *= 2 ** math.floor(math.log2(times))
  mesh = partitioning.make_mesh(config.mesh, _devices(topology))
  multiple = partitioning.batch_multiple(config, mesh)
  while not compile_rows(rows)["fits"] and rows % (2 * multiple) == 0:
    rows //= 2
  while compile_rows(rows)["fits"]:
    twice = compile_rows(2 * rows)
    if not twice["fits"]:
      return compile_rows(rows) | {"twice_peak": twice["peak"]}
    rows *= 2
  return compile_rows(rows)


def _number(text: str) -> float:
  """Returns the bytes that the compiler writes as "17.25G"."""
  number, unit = re.fullmatch(r"([\d.]+)([KMGB]?)\S*", text).groups()
  return float(number) * _UNITS[unit]
