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
        "split the state over more chips (config.mesh.fsdp), which hold"
        f" {_gib(state)} of it each."
    )
  remat = "" if report["remat"] == "full" else ' config.model.remat="full";'
  return (
      "a smaller config.train.batch_size or a larger config.train.accumulation;"
      f"{remat} then config.mesh.fsdp and, for long rows, config.mesh.context."
  )


def text(report: dict[str, Any]) -> str:
  """Returns what a report says, over several lines."""
  known = report["parts"]
  if "temporaries" not in known:  # Of a program that does not fit.
    rest = report["peak"] - sum(known.values())
    known = known | {"temporaries and the rest": rest}
  parts = ", ".join(f"{k} {_gib(v)}" for k, v in known.items())
  program = "reading" if report["program"] == "eval" else "training step"
  over = report["peak"] - report["limit"]
  lines = [
      f"{report['topology']} ({report['chips']} chips), {report['encoding']},"
      f" {report['num_layers']} layers of width {report['width']},"
      f" {report['length']} tokens, {report['batch_size']} rows: {program}",
      f"  of one chip: {parts}",
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
          "  loops whose turns depend on data are counted once (tiles in XLA)"
      )
  if "twice_peak" in report:
    lines.append(
        "  the largest batch that fits: twice the rows need"
        f" {_gib(report['twice_peak'])}"
    )
  if not report["fits"]:
    lines.append(f"  to make it fit: {_advice(report)}")
  return "\n".join(lines)


def read_lines(file: str, flag: str) -> list[dict[str, Any]]:
  """Returns the reports of a file of --json.

  Raises:
    ConfigError: it cannot be read, or has other lines; the message begins with the
      flag that names the file.
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
        f"{flag}={file} is no file that --json has written ({e})."
    ) from e


def table(reports: list[dict[str, Any]]) -> str:
  """Returns a Markdown table, a row for each report."""
  head = (
      "program",
      "chips",
      "model",
      "encoding",
      "length",
      "rows",
      "state GiB",
      "peak GiB",
      "limit GiB",
      "fits",
      "twice the rows",
      "compute ms",
      "memory ms",
      "collectives ms",
      "attention",
      "command",
  )
  rows = [head, ("---",) * len(head)]
  for report in reports:
    state = sum(report["parts"].get(k, 0) for k in ("parameters", "optimizer"))
    seconds = report.get("seconds", {})
    times = [
        f"{seconds[k] * 1e3:.1f}" if k in seconds else ""
        for k in ("compute", "memory", "collectives")
    ]
    kernel = {True: "kernel", False: "XLA", None: ""}[report.get("kernel")]
    rows.append(
        (
            report["program"],
            report["topology"],
            f"{report['num_layers']} x {report['width']}",
            report["encoding"],
            str(report["length"]),
            str(report["batch_size"]),
            f"{state / _GIB:.2f}",
            f"{report['peak'] / _GIB:.2f}",
            f"{report['limit'] / _GIB:.2f}",
            "yes" if report["fits"] else "no",
            f"{report['twice_peak'] / _GIB:.2f}"
            if "twice_peak" in report
            else "",
            *times,
            kernel,
            f"`{report['command']}`",
        )
    )
  return "\n".join(f"| {' | '.join(row)} |" for row in rows)
