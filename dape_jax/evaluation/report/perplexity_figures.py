"""Figures of perplexity over context length and of loss over position."""

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dape_jax.evaluation.report import figures
from dape_jax.evaluation.report.subjects import Subject, labels, subjects

# With more lines, crop baselines get their own panel, and single runs have no
# bands, which would overlap.
_FEW = 4
# Ratio of perplexities above which a second panel shows the low ones.
_DIVERGES = 20
_CROP = "crop: context cut to the training length"
_CROP_LINE = {"linewidth": 1, "linestyle": "--"}


def _finite(values: Sequence[Any]) -> np.ndarray:
  """Returns float64 values; infinite ones become NaN, which is not drawn."""
  values = np.array(values, np.float64)
  return np.where(np.isfinite(values), values, math.nan)


def _perplexities(
    compared: Sequence[Subject], field: str, num_lengths: int
) -> np.ndarray:
  """Returns float64 [subjects, lengths], NaN where not finite."""
  return _finite(
      [[s.value(field, i).mean for i in range(num_lengths)] for s in compared]
  )


def _band(subject: Subject) -> np.ndarray | None:
  """Returns [2, lengths]: range over seeds or one run's interval; or None."""
  rows = [run["rows"] for run in subject.runs]
  if len(rows) > 1:
    values = _finite([[r["perplexity"] for r in run] for run in rows])
    return np.stack([values.min(axis=0), values.max(axis=0)])
  bounds = [
      [row[f"perplexity_{end}"] for row in rows[0]] for end in ("low", "high")
  ]
  return None if None in bounds[0] else _finite(bounds)


def _missing(lengths: Sequence[int], *values: np.ndarray) -> str:
  """Returns a note on the lengths that have no point."""
  notes = []
  for what, row in zip(("", "crop "), values):
    names = [str(n) for n, value in zip(lengths, row) if math.isnan(value)]
    if names:
      notes.append(f" ({what}not finite at {', '.join(names)})")
  return "".join(notes)


def _perplexity_axis(axes: Any, values: np.ndarray) -> None:
  """Makes the y axis logarithmic, with tick labels even for a short range."""
  from matplotlib import ticker

  axes.set_yscale("log")
  values = values[~np.isnan(values)]
  if not values.size:
    axes.set_ylim(1, 10)
    return
  spread = values.max() / values.min()
  if spread < _DIVERGES:
    # Ticks at powers of ten could leave the axis without a label.
    locator = ticker.MaxNLocator(nbins=7)
  else:
    locator = ticker.LogLocator(subs=(1, 2, 5) if spread < 1e4 else (1,))
  axes.yaxis.set_major_locator(locator)
  axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda y, _: f"{y:g}"))
  axes.yaxis.set_minor_locator(ticker.NullLocator())


def perplexity_figure(results: dict[str, Any], path: os.PathLike) -> None:
  """Writes a PNG file of perplexity over length, one line per run or group.

  Bands are the range over several seeds or, for up to four single runs, the 95%
  bootstrap interval over documents. The crop baseline is dashed, in a panel of
  its own for more than four lines; the training length is a vertical line. If
  perplexities diverge, a second panel shows the low ones. Lengths whose
  perplexity is not finite have no point; the legend names them.

  Args:
    results: see `results_file`.
    path: path of the file.
  """
  compared, lengths = subjects(results), results["lengths"]
  values = _perplexities(compared, "perplexity", len(lengths))
  crops = _perplexities(compared, "crop_perplexity", len(lengths))
  drawn = np.concatenate([values, crops])
  drawn = drawn[~np.isnan(drawn)]
  diverges = bool(drawn.size and drawn.max() > _DIVERGES * drawn.min())
  few = len(compared) <= _FEW
  num_panels = 1 + diverges + (not few)
  figure = figures.new_figure(9 if few else 10, 1.6 + 3.4 * num_panels)
  panels = list(figure.subplots(num_panels, 1, squeeze=False).flat)

  lines = {}
  with_values = panels[: 1 + diverges]
  with_crops = with_values if few else panels[-1:]
  for number, (subject, name) in enumerate(zip(compared, labels(compared))):
    style = figures.line_style(number)
    band = _band(subject) if few or len(subject.runs) > 1 else None
    name += _missing(lengths, values[number], crops[number])
    for axes in with_values:
      (lines[name],) = axes.plot(lengths, values[number], **style)
      if band is not None:
        color = style["color"]
        axes.fill_between(lengths, *band, color=color, alpha=0.15, lw=0)
    for axes in with_crops:
      marker = None if few else style["marker"]
      dashed = style | _CROP_LINE | {"marker": marker}
      axes.plot(lengths, crops[number], **dashed)

  for axes in panels:
    training = figures.train_length_line(
        axes, [subject.train_length for subject in compared]
    )
    figures.length_axis(axes, lengths)
    axes.set_ylabel("perplexity (per token)")
  panels[-1].set_xlabel("context length (tokens)")
  _perplexity_axis(panels[0], drawn)
  if not few:
    _perplexity_axis(panels[-1], crops)
    panels[-1].set_title(_CROP, fontsize=9, loc="left")
  if diverges:
    _perplexity_axis(panels[1], np.array([1.0]))
    panels[1].set_ylim(0.97 * drawn.min(), 2 * drawn.min())
    panels[1].set_title(
        "the same, up to twice the lowest", fontsize=9, loc="left"
    )
  row = results["runs"][0]["rows"][0]
  figure.suptitle(
      f"Perplexity of the same {row['tokens']:,} tokens given more context\n"
      + figures.plain(
          f"{results['source']}, {results['split']} split, protocol"
          f" {results['protocol']}, {row['documents']} documents"
      ),
      fontsize=11,
  )
  (crop,) = panels[0].plot([], [], color="0.4", **_CROP_LINE)
  others = {"training length": training, _CROP: crop}
  figures.legend_in_order(figure, lines, values[:, -1], others)
  figure.savefig(path)


def position_figure(results: dict[str, Any], path: os.PathLike) -> None:
  """Writes a PNG file of the loss by position, averaged over seeds.

  As in figures 5 and 7 of Chi et al. 2022, arXiv 2205.09921. The crop baseline
  is dashed; the training length is a vertical line.

  Args:
    results: see `results_file`; every run has positions.
    path: path of the file.
  """
  compared = subjects(results)
  figure = figures.new_figure(9, 5.5)
  axes = figure.add_subplot()
  lines, last = {}, []
  for number, (subject, name) in enumerate(zip(compared, labels(compared))):
    runs = [run["positions"] for run in subject.runs]
    # Counted from 1, because a logarithmic axis has no 0.
    middles = [(bucket["begin"] + 1 + bucket["end"]) / 2 for bucket in runs[0]]
    loss, crop = (
        _finite([[b[field] for b in run] for run in runs]).mean(axis=0)
        for field in ("loss", "crop_loss")
    )
    style = figures.line_style(number)
    (lines[name],) = axes.plot(middles, loss, **style)
    axes.plot(middles, crop, color=style["color"], **_CROP_LINE)
    last.append(loss[-1])
  training = figures.train_length_line(
      axes, [subject.train_length for subject in compared]
  )
  end = max(bucket["end"] for bucket in runs[0])
  figures.length_axis(axes, [1 << i for i in range(end.bit_length())])
  (crop,) = axes.plot([], [], color="0.4", **_CROP_LINE)
  axes.set_xlabel("position in the text (the first is 1)")
  axes.set_ylabel("loss (nats per token)")
  axes.set_title(
      figures.plain(
          f"Loss by position\n{results['source']}, {results['split']} split"
      ),
      fontsize=11,
  )
  others = {"training length": training, _CROP: crop}
  figures.legend_in_order(figure, lines, last, others)
  figure.savefig(path)
