"""Tables of the benchmark's results."""

from collections.abc import Sequence
from typing import Any

import tabulate


def one_line(row: dict[str, Any]) -> str:
  """Formats a row as progress output."""
  names = ("chip", "encoding", "length", "pass", "implementation")
  return " ".join([*(str(row[n]) for n in names if n in row), _outcome(row)])


def _outcome(row: dict[str, Any]) -> str:
  if "skipped" in row:
    return row["skipped"]
  if "seconds" in row:
    return f"{_milliseconds(row['seconds'])} ms"
  return f"{_megabytes(row['temp_bytes'])} MB of temporaries"


def _milliseconds(seconds: float | None) -> str:
  """Returns seconds as milliseconds with three digits."""
  return "" if seconds is None else _digits(seconds * 1e3)


def _megabytes(size: int | None) -> str:
  """Returns bytes as MB (10^6) with three digits."""
  return "" if size is None else _digits(size / 1e6)


def _digits(x: float) -> str:
  return f"{x:#.3g}" if abs(x) < 99.95 else f"{x:,.0f}"


def markdown(results: dict[str, Any]) -> str:
  """Formats the results of `__main__` as Markdown."""
  batch, heads, head_dim = results["shape"]
  where = results.get("machine")
  lines = [f"`{results['command']}`", ""]
  what = f"Batch {batch}, {heads} heads of {head_dim}, {results['dtype']}."
  if where is None:
    return "\n".join([*lines, what, "", *_tpu_tables(results)])
  load = where["load_average"]
  lines += [
      f"{what} {where['device']} ({where['platform']}), {where['cores']} cores,"
      f" load average {load:.1f} at the start, jax {where['jax']}. Medians of"
      " alternating rounds; ratios are materialised / this.",
      "",
  ]
  return "\n".join(lines + _time_table(results["rows"]))


def _time_table(rows) -> list[str]:
  has_peak = any(row.get("peak_bytes") for row in rows)
  has_notes = any("skipped" in row for row in rows)
  header = [
      "encoding",
      "length",
      "pass",
      "implementation",
      "ms",
      "best ms",
      "times faster",
      "temporaries MB",
      "times smaller",
      *(["device peak MB"] if has_peak else []),
      *(["skipped"] if has_notes else []),
  ]
  body = [
      [
          *(row[n] for n in ("encoding", "length", "pass", "implementation")),
          _milliseconds(row.get("seconds")),
          _milliseconds(row.get("best_seconds")),
          _ratio(row["times_faster"]),
          _megabytes(row.get("temp_bytes")),
          _ratio(row["times_smaller"]),
          *([_megabytes(row.get("peak_bytes"))] if has_peak else []),
          *([row.get("skipped", "")] if has_notes else []),
      ]
      for row in rows
  ]
  return _table(header, body, text_columns=4)


def _ratio(x: float | None) -> str:
  return "" if x is None else _digits(x)


def _tpu_tables(results: dict[str, Any]) -> list[str]:
  names = ("chip", "encoding", "length", "pass", "implementation")
  memory, cycles = [], []
  for row in results["rows"]:
    case = [row[n] for n in names]
    flops, accessed = row.get("flops"), row.get("bytes_accessed")
    numbers = [
        _megabytes(row.get("temp_bytes")),
        _megabytes(row.get("hbm_bytes")),
        "" if flops is None else _digits(flops / 1e9),
        "" if accessed is None else _digits(accessed / 1e9),
    ]
    memory.append([*case, *numbers, row.get("skipped", "")])
    parts = row.get("cycles", ())
    if "cycles" in row and not parts:
      cycles.append([*case, "not available with this libtpu", "", "", "", ""])
    for part in parts:
      masked = part["masked"]
      numbers = [
          f"{part['full']:.3f}",
          "" if masked is None else f"{masked:.3f}",
          ", ".join(map(str, part.get("bundles", ()))),
          part.get("step_bundles", ""),
      ]
      cycles.append([*case, part["of"], *numbers])
  bounds = [
      [b["chip"], b["encoding"], f"{b['forward']:.3f}", f"{b['backward']:.3f}"]
      for b in results["bounds"]
  ]
  return [
      "HBM of one chip, by the compiler; operations as it counts them: loop bodies"
      " once, kernels by their cost estimate.",
      "",
      *_table(
          [
              *names,
              "temporaries MB",
              "all MB",
              "GFLOP",
              "GB accessed",
              "not compiled",
          ],
          memory,
          text_columns=5,
      ),
      "",
      "Static cycles per (query, key) pair: one bundle is one cycle, excluding"
      " waits for memory. Kernels, from their final schedule: tiles in which all"
      ' pairs are visible ("full") and the others ("masked"). XLA\'s operations,'
      " from the compiler's estimates: \"a turn of XLA's loop\" is per pair of one"
      ' tile, "XLA" is the rest, per pair, visible or not.',
      "",
      *_table(
          [*names, "of", "full", "masked", "bundles of tile", "rest of step"],
          cycles,
          text_columns=6,
      ),
      "",
      "Lower bound of the matrix units, cycles per pair:",
      "",
      *_table(
          ["chip", "encoding", "forward", "backward"], bounds, text_columns=2
      ),
  ]


def _table(
    header: Sequence[str], rows: Sequence[Sequence[Any]], *, text_columns: int
) -> list[str]:
  """Returns the lines of a Markdown table.

  Args:
    header: names of the columns.
    rows: cells.
    text_columns: number of left-aligned columns; the others are right-aligned.
  """
  align = ["left"] * text_columns + ["right"] * (len(header) - text_columns)
  return tabulate.tabulate(
      rows, header, "pipe", colalign=align, disable_numparse=True
  ).splitlines()
