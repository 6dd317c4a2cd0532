"""Compiles a config's programs for TPU topologies, without a TPU.

The compiler plans memory in seconds and then generates code for minutes. So each
compilation runs in a process, which is killed once the plan exists unless code is
asked for. The plan is read from the compiler's dump: nothing else has it, and for
some TPU v5p programs nothing else has the HLO text.
"""

import dataclasses
import math
import multiprocessing
import os
import pathlib
import re
import tempfile
from multiprocessing.connection import Connection
from typing import Any

from dape_jax.compiler import programs
from dape_jax.compiler import tpu as tpu_compiler
from dape_jax.compiler.costs import program_costs
from dape_jax.config import ExperimentConfig
from dape_jax.errors import ConfigError
from dape_jax.training.flops import chip_of

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def _compile(
    connection: Connection,
    config: ExperimentConfig,
    topology: str,
    eval_length: int,
    folder: str,
) -> None:
  """Compiles in a child process.

  Sends the report known before compiling; then None, or the bytes needed by a
  program that does not fit. Sends a ConfigError instead if the config is invalid.
  """
  os.environ.update(tpu_compiler.ENVIRONMENT)
  try:
    lowered, report = programs.lower(config, topology, eval_length)
  except ConfigError as e:
    connection.send(e)
    return
  connection.send(report)
  try:
    lowered.compile(
        compiler_options={"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
    )
  except Exception as e:
    sizes = tpu_compiler.needed_and_available(e)
    if sizes is None:
      raise
    # This is the total, although one message says "temporaries".
    connection.send(_number(sizes[0]))
  else:
    connection.send(None)


def _planned(folder: pathlib.Path) -> bool:
  """Returns whether the plan is complete: a later file exists."""
  return any(folder.glob("*.after_optimizations_after_buffer_assignment.txt"))


def _only(folder: pathlib.Path, ending: str) -> str:
  (file,) = folder.glob(f"*.{ending}.txt")
  return file.read_text()


def compile_for(
    config: ExperimentConfig,
    topology: str,
    eval_length: int = 0,
    generate_code: bool = False,
) -> dict[str, Any]:
  """Returns the TPU compiler's report on a config, per chip.

  Args:
    config: includes the mesh.
    topology: such as "v5p:4x4x4".
    eval_length: 0 compiles the training step; otherwise the evaluation step for a
      chunk of a text of this many tokens, on one chip.
    generate_code: run the compiler to the end. This takes minutes instead of
      seconds and changes no number, but finds kernels that do not compile.

  Returns:
    A JSON object: topology, device_kind, chips, program, encoding, num_layers, width,
    length, batch_size (rows), remat, parts (bytes by name), peak and limit (bytes),
    fits, flops, memory_bytes, sent (bytes by kind of collective), seconds (roofline:
    compute, memory, collectives), has_unknown_loops, kernel (whether attention is the
    Pallas kernel) and code (whether it was generated). For some programs that do not
    fit, the compiler reports only the peak.

  Raises:
    ConfigError: the topology or the mesh is invalid, or the compiler failed.
  """
  context = multiprocessing.get_context("spawn")
  receiver, sender = context.Pipe(duplex=False)
  with tempfile.TemporaryDirectory(prefix="dape_jax_aot") as folder:
    process = context.Process(
        target=_compile, args=(sender, config, topology, eval_length, folder)
    )
    process.start()
    sender.close()
    folder = pathlib.Path(folder)
    try:
      report = _received(receiver, process)
      needed = None
      while generate_code or not _planned(folder):
        if receiver.poll(0.1):  # Also true if the process died.
          needed = _received(receiver, process)
          break
      if not _planned(folder):
        return report | {"peak": needed, "fits": False}
      plan = _only(folder, "after_optimizations-memory-usage-report")
      text = _only(folder, "after_optimizations")
    finally:
      process.kill()
      process.join()
  code = generate_code and needed is None
  return report | _costs(report, plan, text) | {"code": code}


def _received(receiver: Connection, process) -> Any:
  try:
    value = receiver.recv()
  except EOFError as e:
    process.join()
    raise ConfigError(
        f"the TPU compiler failed (status {process.exitcode}, see above)."
    ) from e
  if isinstance(value, ConfigError):
    raise value
  return value


def _costs(report: dict[str, Any], plan: str, text: str) -> dict[str, Any]:
  """Returns the report's fields that come from the compiler's plan."""
  # "default" is main memory (HBM).
  found = re.search(r"Memory Space: default .*\nTotal bytes: (\d+)", plan)
  peak = int(found[1])
  costs = program_costs(text)
  chip = chip_of(report["device_kind"])
  rest = peak - sum(report["parts"].values())
  return {
      "parts": report["parts"] | {"temporaries": rest},
      "peak": peak,
      "fits": bool(peak <= chip.memory),
      "memory_bytes": costs.memory,
      "sent": costs.sent,
      "seconds": {
          "compute": report["flops"] / chip.flops,
          "memory": costs.memory / chip.memory_bandwidth,
          "collectives": sum(costs.sent.values()) / chip.link_bandwidth,
      },
      "has_unknown_loops": costs.has_unknown_loops,
      "kernel": "tpu_custom_call" in text,
  }


def compile_largest_batch(
    config: ExperimentConfig, topology: str, generate_code: bool = False
) -> dict[str, Any]:
  """Returns the report of `compile_for` on the largest batch that fits.

  Tries config.train.batch_size times powers of two.

  Args:
    config, topology: see `compile_for`.
    generate_code: for the largest batch, see `compile_for`.

  Returns:
    The report, with the peak of twice the batch (bytes) as twice_peak. If no batch
    fits, the report of the smallest that the mesh can divide, without twice_peak.

  Raises:
    ConfigError: see `compile_for`.
  """
  reports = {}

  def with_rows(rows: int) -> ExperimentConfig:
    train = dataclasses.replace(config.train, batch_size=rows)
    return dataclasses.replace(config, train=train)

  def compile_rows(rows: int) -> dict[str, Any]:
    if rows not in reports:
      reports[rows] = compile_for(with_rows(rows), topology)
    return reports[rows]

  rows = config.train.batch_size
  report = compile_rows(rows)
  if report["fits"]:
    # Start from a guess: temporaries are nearly proportional to the rows.
    temporaries = report["parts"]["temporaries"]
    times = 1 + (report["limit"] - report["peak"]) / temporaries
    rows *= 2 ** math.floor(math.log2(times))
  groups = report["chips"] // config.mesh.context
  multiple = groups * config.train.accumulation
  while not compile_rows(rows)["fits"] and rows % (2 * multiple) == 0:
    rows //= 2
  while compile_rows(rows)["fits"]:
    twice = compile_rows(2 * rows)
    if not twice["fits"]:
      report = compile_rows(rows)
      if generate_code:
        report = compile_for(with_rows(rows), topology, generate_code=True)
      return report | {"twice_peak": twice["peak"]}
    rows *= 2
  return compile_rows(rows)


def _number(text: str) -> float:
  """Parses the compiler's byte counts, such as "17.25G"."""
  number, unit = re.fullmatch(r"([\d.]+)([KMGB]?)\S*", text).groups()
  return float(number) * _UNITS[unit]
