"""Reports of `ahead_of_time.compile_for`, as text and as a table."""

import json
import pathlib
from typing import Any

from dape_jax.errors import ConfigError

_GIB = 2.0**30


def _gib(size: float) -> str:
  return f"{size / _GIB:.2f} GiB"


def _advice(report: dict[str, Any]) -> str:
  """Returns what to change so that the program fits."""
  if report["program"] == "eval":
    return "fewer tokens (--eval_length), or a chip with more memory."
  state = report["parts"]["parameters"] + report["parts"]["optimizer"]
  if state > report["limit"] / 2:
    return (
        "shard the state over more chips (config.mesh.fsdp); each now holds"
        f" {_gib(state)} of it."
    )
  remat = "" if report["remat"] == "full" else ' config.model.remat="full";'
  return (
      "a smaller config.train.batch_size or a larger config.train.accumulation;"
      f"{remat} then config.mesh.fsdp and, for long rows, config.mesh.context."
  )


def text(report: dict[str, Any]) -> str:
  """Formats a report over several lines."""
  parts = report["parts"]
  if "temporaries" not in parts:  # Unknown if the program does not fit.
    rest = report["peak"] - sum(parts.values())
    parts = parts | {"temporaries and the rest": rest}
  parts = ", ".join(f"{k} {_gib(v)}" for k, v in parts.items())
  program = "evaluation" if report["program"] == "eval" else "training step"
  over = report["peak"] - report["limit"]
  lines = [
      f"{report['topology']} ({report['chips']} chips), {report['encoding']},"
      f" {report['num_layers']} layers of width {report['width']},"
      f" {report['length']} tokens, {report['batch_size']} rows: {program}",
      f"  per chip: {parts}",
      f"  peak {_gib(report['peak'])} of {_gib(report['limit'])}:"
      + (" fits" if report["fits"] else f" DOES NOT FIT, by {_gib(over)}"),
  ]
  if "seconds" in report:
    seconds = report["seconds"]
    sent = ", ".join(
        f"{k} {v / 1e6:,.0f} MB" for k, v in report["sent"].items()
    )
    longest = max(seconds, key=seconds.get)
    share = seconds["collectives"] / sum(seconds.values())
    lines += [
        f"  {report['flops']:.3g} FLOPs, {report['memory_bytes'] / 1e9:,.1f} GB"
        f" through memory, sent: {sent or 'nothing'}",
        "  roofline: "
        + ", ".join(f"{k} {v * 1e3:,.2f} ms" for k, v in seconds.items())
        + f"; bound by {longest}, collectives {share:.0%} of the sum",
        "  attention: "
        + ("Pallas kernel" if report["kernel"] else "tiles in XLA")
        + ("; code generated" if report["code"] else ""),
    ]
    if report["has_unknown_loops"]:
      lines.append(
          "  loops with data-dependent trip counts are counted once (XLA tiles)"
      )
  if "twice_peak" in report:
    lines.append(
        "  the largest batch that fits: twice the batch needs"
        f" {_gib(report['twice_peak'])}"
    )
  if not report["fits"]:
    lines.append(f"  to make it fit: {_advice(report)}")
  return "\n".join(lines)


def read_lines(file: str, flag: str) -> list[dict[str, Any]]:
  """Reads the reports in a file written by --json.

  Args:
    file: path.
    flag: flag that names the file, for the error message.

  Raises:
    ConfigError: the file cannot be read, or has other content.
  """
  try:
    reports = [
        json.loads(line) for line in pathlib.Path(file).read_text().splitlines()
    ]
    for report in reports:
      if missing := {"command", "parts", "peak"}.difference(report):
        raise ValueError(f"a line lacks {', '.join(sorted(missing))}")
    return reports
  except (OSError, ValueError, KeyError, TypeError) as e:
    raise ConfigError(
        f"{flag}={file} is not a file written by --json ({e})."
    ) from e


def table(reports: list[dict[str, Any]]) -> str:
  """Returns a Markdown table with a row for each of one or more reports."""
  rows = [_row(report) for report in reports]
  lines = [rows[0].keys(), ["---"] * len(rows[0]), *(r.values() for r in rows)]
  return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(report: dict[str, Any]) -> dict[str, str]:
  parts, seconds = report["parts"], report.get("seconds", {})
  state = parts.get("parameters", 0) + parts.get("optimizer", 0)
  gib = lambda size: "" if size is None else f"{size / _GIB:.2f}"
  ms = lambda name: f"{seconds[name] * 1e3:.1f}" if name in seconds else ""
  return {
      "program": report["program"],
      "chips": report["topology"],
      "model": f"{report['num_layers']} x {report['width']}",
      "encoding": report["encoding"],
      "length": str(report["length"]),
      "rows": str(report["batch_size"]),
      "state GiB": gib(state),
      "peak GiB": gib(report["peak"]),
      "limit GiB": gib(report["limit"]),
      "fits": "yes" if report["fits"] else "no",
      "twice the rows": gib(report.get("twice_peak")),
      "compute ms": ms("compute"),
      "memory ms": ms("memory"),
      "collectives ms": ms("collectives"),
      "attention": {True: "kernel", False: "XLA"}.get(report.get("kernel"), ""),
      "command": f"`{report['command']}`",
  }
