"""Picture of perplexity over context length."""

import math
import os
from typing import Any


def describe(run: dict[str, Any]) -> str:
  """Returns a run's name with its encoding and training length."""
  name, encoding = run["name"], run["encoding"]
  shown = name if encoding in name else f"{name} ({encoding})"
  return f"{shown}, trained at {run['train_length']}"


def _finite(run: dict[str, Any], field: str) -> list[float]:
  """Returns the field of each row, NaN (which is not drawn) if infinite."""
  values = [row[field] for row in run["rows"]]
  return [value if math.isfinite(value) else math.nan for value in values]


def _label(run: dict[str, Any]) -> str:
  label = describe(run)
  for field, what in (("perplexity", ""), ("crop_perplexity", "crop ")):
    missing = [
        str(row["length"])
        for row in run["rows"]
        if not math.isfinite(row[field])
    ]
    if missing:
      label += f"\n({what}not finite at {', '.join(missing)})"
  return label


def plot(results: dict[str, Any], path: os.PathLike) -> None:
  """Draws perplexity over length, one line per run, as a PNG file.

  The crop baseline is a thin dashed line of the run's colour, the training
  length a vertical line. Lengths whose perplexity is not finite have no point;
  the legend names them.

  Args:
    results: see `report`.
    path: of the PNG file.
  """
  # Half a second that only those who draw should pay.
  from matplotlib import ticker
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  runs, lengths = results["runs"], results["lengths"]
  figure = Figure(figsize=(8, 5), dpi=150, layout="constrained")
  FigureCanvasAgg(figure)
  axes = figure.add_subplot()
  axes.set_xscale("log", base=2)
  axes.set_yscale("log")
  drawn = []
  for number, run in enumerate(runs):
    color = f"C{number % 10}"
    perplexities = _finite(run, "perplexity")
    crops = _finite(run, "crop_perplexity")
    axes.plot(lengths, crops, color=color, linewidth=1, linestyle="--")
    axes.plot(
        lengths,
        perplexities,
        color=color,
        linewidth=2,
        marker="o",
        markersize=5,
        label=_label(run),
    )
    drawn += [v for v in perplexities + crops if not math.isnan(v)]
  axes.plot(
      [],
      [],
      color="0.4",
      linewidth=1,
      linestyle="--",
      label="crop: context cut to the training length",
  )
  train_lengths = [run["train_length"] for run in runs]
  shared = len(set(train_lengths)) == 1
  for number, train_length in enumerate(train_lengths[: 1 if shared else None]):
    axes.axvline(
        train_length,
        color="0.2" if shared else f"C{number % 10}",
        linewidth=1,
        linestyle=":",
    )
  axes.plot(
      [], [], color="0.2", linewidth=1, linestyle=":", label="training length"
  )

  axes.xaxis.set_major_locator(ticker.FixedLocator(lengths))
  axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:.0f}"))
  axes.xaxis.set_minor_locator(ticker.NullLocator())
  if len(lengths) > 8:
    axes.tick_params(axis="x", labelrotation=45)
  if drawn and max(drawn) < 20 * min(drawn):
    # Powers of ten would leave the axis without a number.
    axes.yaxis.set_major_locator(ticker.MaxNLocator(nbins=8))
  else:
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
  axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda y, _: f"{y:g}"))
  axes.yaxis.set_minor_locator(ticker.NullLocator())
  axes.grid(color="0.9")
  axes.set_axisbelow(True)
  axes.set_xlabel("context length (tokens)")
  axes.set_ylabel("perplexity (per token)")
  row = runs[0]["rows"][0]
  axes.set_title(
      f"Perplexity of the same {row['tokens']:,} tokens read with more context"
      f"\n{results['source']} corpus, {results['split']} split,"
      f" protocol {results['protocol']}, {row['regions']} regions",
      fontsize=11,
  )
  axes.legend(fontsize=9, frameon=False)
  figure.savefig(path)
