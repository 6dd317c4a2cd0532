"""Measures time and memory of attention on this machine."""

import collections
import importlib.util
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from dape_jax import encodings
from dape_jax.benchmarks.attention.materialised import (
    MATERIALISED,
    Cases,
    arguments,
    implementation,
    program,
)
from dape_jax.errors import ConfigError

TORCH = "torch"
_SAFE_SHARE = 0.9  # Of the free memory.


def measure(
    cases: Cases,
    implementations: list[str],
    *,
    repeats: int,
    with_torch: bool,
) -> Iterator[dict[str, Any]]:
  """Yields a row for each implementation of each case.

  The implementations of a case are first compiled and warmed up. Then they alternate
  for `repeats` rounds, so that other load on the machine affects all equally.

  Args:
    cases: to measure.
    implementations: "materialised" or names of `attention`'s implementations.
    repeats: rounds.
    with_torch: also measure the materialised formulation in PyTorch.

  Yields:
    encoding, length, pass, implementation; then "skipped", a reason, or
    seconds (median), best_seconds, temp_bytes (the compiler's temporaries; None for
    PyTorch), peak_bytes (of the device; None if it is not reported or this program
    did not raise it), and times_faster and times_smaller, the ratios of
    "materialised" to this row (None without it).
  """
  for case in cases:
    encoding = encodings.make(case["encoding"], num_heads=cases.shape[1])
    backward = case["pass"] == "both"
    arrays = arguments(
        encoding, case["length"], cases.shape, cases.dtype, backward=backward
    )
    for row in _measure_case(
        encoding, arrays, implementations, repeats, with_torch
    ):
      yield case | row


def _measure_case(
    encoding, arrays, implementations, repeats, with_torch
) -> list[dict[str, Any]]:
  runs: dict[str, Callable[[], Any]] = {}
  rows = {name: {"implementation": name} for name in implementations}
  backward = len(arrays) == 6
  needed = {}
  for name, row in rows.items():
    function = program(encoding, implementation(name), backward=backward)
    try:
      compiled = jax.jit(function).lower(*arrays).compile()
    except Exception as e:  # A failing case must not end the others.
      row["skipped"] = short_reason(e)
      continue
    memory = compiled.memory_analysis()
    row["temp_bytes"] = memory.temp_size_in_bytes
    needed[name] = memory.temp_size_in_bytes + memory.output_size_in_bytes
    if reason := _does_not_fit(needed[name]):
      row["skipped"] = reason
      continue
    runs[name] = lambda compiled=compiled: jax.block_until_ready(
        compiled(*arrays)
    )
  # Devices report their highest use so far, so small programs go first.
  for name in sorted(runs, key=lambda name: rows[name]["temp_bytes"]):
    before = _peak_bytes()
    runs[name]()
    after = _peak_bytes()
    rows[name]["peak_bytes"] = after if after != before else None

  if with_torch:
    rows[TORCH] = row = {"implementation": TORCH, "temp_bytes": None}
    try:
      # PyTorch needs as much memory as the same formulation in JAX.
      if reason := _does_not_fit(needed.get(MATERIALISED, 0)):
        raise NotImplementedError(reason)
      from dape_jax.benchmarks.attention import pytorch

      runs[TORCH] = pytorch.torch_program(
          encoding, *arrays, threads=num_threads()
      )
      runs[TORCH]()
    except NotImplementedError as e:
      row["skipped"] = short_reason(e)

  seconds = collections.defaultdict(list)
  for _ in range(repeats):
    for name, run in runs.items():
      start = time.perf_counter()
      run()
      seconds[name].append(time.perf_counter() - start)
  for name, times in seconds.items():
    rows[name]["seconds"] = statistics.median(times)
    rows[name]["best_seconds"] = min(times)
  baseline = rows.get(MATERIALISED, {})
  ratios = {"times_faster": "seconds", "times_smaller": "temp_bytes"}
  for row in rows.values():
    for ratio, field in ratios.items():
      known = baseline.get(field) and row.get(field)
      row[ratio] = baseline[field] / row[field] if known else None
  return list(rows.values())


def check_torch(platform: str) -> None:
  """Raises a ConfigError unless PyTorch is installed and JAX uses the CPU too."""
  if importlib.util.find_spec("torch") is None:
    raise ConfigError("--torch needs PyTorch: pip install 'dape_jax[bench]'")
  if platform != "cpu":
    raise ConfigError(
        "--torch runs PyTorch on the CPU; set JAX_PLATFORMS=cpu for both."
    )


def short_reason(error: Exception) -> str:
  """Returns the start of an error's message, on one line."""
  text = " ".join(str(error).split())
  if not isinstance(error, NotImplementedError):
    text = f"{type(error).__name__}: {text}"
  return text if len(text) <= 160 else text[:157] + "..."


def _does_not_fit(bytes_needed: int) -> str | None:
  free = _free_bytes()
  if free is None or bytes_needed <= _SAFE_SHARE * free:
    return None
  return (
      f"does not fit: {bytes_needed / 1e9:.1f} GB, and"
      f" {free / 1e9:.1f} GB are free"
  )


def _free_bytes() -> int | None:
  """Returns the free memory of the first device, None if unknown."""
  device = jax.devices()[0]
  if stats := device.memory_stats():
    limit = stats.get("bytes_limit")
    return limit and limit - stats.get("bytes_in_use", 0)
  memory = pathlib.Path("/proc/meminfo")
  if device.platform != "cpu" or not memory.exists():
    return None
  for line in memory.read_text().splitlines():
    if line.startswith("MemAvailable:"):
      return int(line.split()[1]) * 1024
  return None


def _peak_bytes() -> int | None:
  stats = jax.devices()[0].memory_stats() or {}
  return stats.get("peak_bytes_in_use")


def num_threads() -> int:
  """Returns the number of cores this process may use, as XLA counts them."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def machine() -> dict[str, Any]:
  """Describes the machine and JAX version."""
  device = jax.devices()[0]
  name = device.device_kind
  cpu = pathlib.Path("/proc/cpuinfo")
  if device.platform == "cpu" and cpu.exists():
    models = [x for x in cpu.read_text().splitlines() if "model name" in x]
    name = models[0].partition(":")[2].strip() if models else name
  return {
      "device": name,
      "platform": device.platform,
      "cores": num_threads(),
      "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
      "jax": jax.__version__,
  }
