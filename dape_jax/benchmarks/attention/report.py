"""Tables of the benchmark's results."""

from typing import Any

import tabulate

_CASE = ("chip", "encoding", "length", "pass", "implementation")


def one_line(row: dict[str, Any]) -> str:
  """Formats a row as progress output."""
  return " ".join([*map(str, _case(row).values()), _outcome(row)])


def _case(row: dict[str, Any]) -> dict[str, Any]:
  return {name: row[name] for name in _CASE if name in row}


def _outcome(row: dict[str, Any]) -> str:
  if "skipped" in row:
    return row["skipped"]
  if "seconds" in row:
    return f"{_digits(row['seconds'], 1e-3)} ms"
  return f"{_digits(row['temp_bytes'], 1e6)} MB of temporaries"


def _digits(x: float | None, unit: float = 1) -> str:
  """Returns x / unit with three digits, "" for None."""
  if x is None:
    return ""
  x /= unit
  return f"{x:#.3g}" if abs(x) < 99.95 else f"{x:,.0f}"


def markdown(results: dict[str, Any]) -> str:
  """Formats the results of `__main__` as Markdown."""
  batch, heads, head_dim = results["shape"]
  where = results.get("machine")
  lines = [f"`{results['command']}`", ""]
  what = f"Batch {batch}, {heads} heads of {head_dim}, {results['dtype']}."
  if where is None:
    return "\n".join([*lines, what, "", _tpu_tables(results)])
  load = where["load_average"]
  lines += [
      f"{what} {where['device']} ({where['platform']}), {where['cores']} cores,"
      f" load average {load:.1f} at the start, jax {where['jax']}. Medians of"
      " alternating rounds; ratios are materialised / this.",
      "",
  ]
  return "\n".join([*lines, _time_table(results["rows"])])


def _time_table(rows) -> str:
  optional = {"device peak MB": "peak_bytes", "skipped": "skipped"}
  lines = [
      _case(row)
      | {
          "ms": _digits(row.get("seconds"), 1e-3),
          "best ms": _digits(row.get("best_seconds"), 1e-3),
          "times faster": _digits(row["times_faster"]),
          "temporaries MB": _digits(row.get("temp_bytes"), 1e6),
          "times smaller": _digits(row["times_smaller"]),
          "device peak MB": _digits(row.get("peak_bytes"), 1e6),
          "skipped": row.get("skipped", ""),
      }
      for row in rows
  ]
  for column, field in optional.items():
    if not any(row.get(field) for row in rows):
      for line in lines:
        del line[column]
  return _table(lines, text_columns=4)


def _tpu_tables(results: dict[str, Any]) -> str:
  memory, cycles = [], []
  for row in results["rows"]:
    case = _case(row)
    memory.append(
        case
        | {
            "temporaries MB": _digits(row.get("temp_bytes"), 1e6),
            "all MB": _digits(row.get("hbm_bytes"), 1e6),
            "GFLOP": _digits(row.get("flops"), 1e9),
            "GB accessed": _digits(row.get("bytes_accessed"), 1e9),
            "not compiled": row.get("skipped", ""),
        }
    )
    parts = row.get("cycles", ())
    if "cycles" in row and not parts:
      parts = [{"of": "not available with this libtpu"}]
    for part in parts:
      cycles.append(
          case
          | {
              "of": part["of"],
              "full": _cycles(part.get("full")),
              "masked": _cycles(part.get("masked")),
              "bundles of tile": ", ".join(map(str, part.get("bundles", ()))),
              "rest of step": part.get("step_bundles", ""),
          }
      )
  bounds = [
      {
          "chip": bound["chip"],
          "encoding": bound["encoding"],
          "forward": _cycles(bound["forward"]),
          "backward": _cycles(bound["backward"]),
      }
      for bound in results["bounds"]
  ]
  return f"""\
HBM of one chip, by the compiler; operations as it counts them: loop bodies once, \
kernels by their cost estimate.

{_table(memory, text_columns=5)}

Static cycles per (query, key) pair: one bundle is one cycle, excluding waits for \
memory. Kernels, from their final schedule: tiles in which all pairs are visible \
("full") and the others ("masked"). XLA's operations, from the compiler's estimates: \
"a turn of XLA's loop" is per pair of one tile, "XLA" is the rest, per pair, visible \
or not.

{_table(cycles, text_columns=6)}

Lower bound of the matrix units, cycles per pair:

{_table(bounds, text_columns=2)}"""


def _cycles(x: float | None) -> str:
  return "" if x is None else f"{x:.3f}"


def _table(rows: list[dict[str, Any]], *, text_columns: int) -> str:
  """Returns a Markdown table; columns after the text are right-aligned."""
  if not rows:
    return ""
  align = ["left"] * text_columns + ["right"] * (len(rows[0]) - text_columns)
  return tabulate.tabulate(
      rows, "keys", "pipe", colalign=align, disable_numparse=True
  )
