"""Compiles a config's programs for TPU topologies, without a TPU.

The compiler plans memory in seconds and then generates code for minutes. So its
process is killed once the plan exists unless code is asked for. The plan is read from the compiler's dump: nothing else has it, and for
some TPU v5p programs nothing else has the HLO text.
"""

import dataclasses
import functools
import math
import pathlib
import re
import tempfile
from collections.abc import Callable
from typing import Any

from dape_jax.compiler import programs
from dape_jax.compiler import tpu as tpu_compiler
from dape_jax.compiler.costs import program_costs
from dape_jax.config import ExperimentConfig
from dape_jax.training.flops import chip_of


def _compile(
    send: Callable[[Any], None],
    config: ExperimentConfig,
    topology: str,
    eval_length: int,
    folder: str,
) -> None:
  """Sends the report known before compiling, then the bytes needed.

  The latter are None unless the program does not fit.
  """
  lowered, report = programs.lower(config, topology, eval_length)
  send(report)
  try:
    lowered.compile(
        compiler_options={"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
    )
  except Exception as e:
    sizes = tpu_compiler.needed_and_available(e)
    if sizes is None:
      raise
    # This is the total, although one message says "temporaries".
    number, unit = re.fullmatch(r"([\d.]+)([KMG]?)\S*", sizes[0]).groups()
    send(float(number) * 2 ** (10 * " KMG".index(unit or " ")))
  else:
    send(None)


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
  with (
      tempfile.TemporaryDirectory(prefix="dape_jax_aot") as name,
      tpu_compiler.compiler_process(
          _compile, config, topology, eval_length, name
      ) as receive,
  ):
    dump = lambda ending: [*pathlib.Path(name).glob(f"*.{ending}.txt")]
    # A later file than the plan, which is then complete.
    planned = lambda: dump("after_optimizations_after_buffer_assignment")
    report = receive()
    needed = receive(until=lambda: planned() and not generate_code)
    if not planned():
      return report | {"peak": needed, "fits": False}
    (plan,) = dump("after_optimizations-memory-usage-report")
    (text,) = dump("after_optimizations")
    costs = _costs(report, plan.read_text(), text.read_text())
  return report | costs | {"code": generate_code and needed is None}


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

  @functools.cache
  def compile_rows(rows: int, generate_code: bool = False) -> dict[str, Any]:
    train = dataclasses.replace(config.train, batch_size=rows)
    changed = dataclasses.replace(config, train=train)
    return compile_for(changed, topology, generate_code=generate_code)

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
  if not compile_rows(rows)["fits"]:
    return compile_rows(rows)
  while (twice := compile_rows(2 * rows))["fits"]:
    rows *= 2
  report = compile_rows(rows, True) if generate_code else compile_rows(rows)
  return report | {"twice_peak": twice["peak"]}
