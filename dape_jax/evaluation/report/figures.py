"""Figures of accuracy over length and heat maps; the style of all figures."""

import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# Okabe and Ito's color-blind safe palette, without its yellow, which is faint
# on white. Markers and dashes distinguish more lines than there are colors.
_COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#000000",
    "#56B4E9",
    "#E69F00",
)
_MARKERS = "osD^vP*X<>h"
_DASHES = "-", "-.", (0, (1, 1))
_MOST_TICKS = 20


def new_figure(width: float, height: float) -> Any:
  """Returns an empty matplotlib figure; sizes in inches, 150 dots per inch."""
  # Imported here, because the import takes half a second.
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
  FigureCanvasAgg(figure)
  return figure


def line_style(number: int) -> dict[str, Any]:
  """Returns color, marker and dashes of a line; the first 77 differ."""
  return {
      "color": _COLORS[number % len(_COLORS)],
      "linestyle": _DASHES[number // len(_COLORS) % len(_DASHES)],
      "marker": _MARKERS[number % len(_MARKERS)],
      "markersize": 5,
      "linewidth": 1.6,
  }


def plain(text: str) -> str:
  """Returns the text with formulas escaped for matplotlib.

  Invalid Unicode, which folder names may contain, becomes "?".
  """
  return text.encode(errors="replace").decode().replace("$", r"\$")


def length_axis(axes: Any, lengths: Sequence[int]) -> None:
  """Makes the x axis logarithmic, with a tick at each of the lengths.

  With more than 20 lengths (a range, not powers of two) it stays linear.
  """
  from matplotlib import ticker

  axes.grid(color="0.9")
  axes.set_axisbelow(True)
  if len(lengths) > _MOST_TICKS:
    return
  axes.set_xscale("log", base=2)
  axes.xaxis.set_major_locator(ticker.FixedLocator(lengths))
  axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:.0f}"))
  axes.xaxis.set_minor_locator(ticker.NullLocator())
  if len(lengths) > 8:
    axes.tick_params(axis="x", labelrotation=45)


def train_length_line(axes: Any, train_lengths: Sequence[int]) -> Any:
  """Draws vertical lines at the training lengths; returns one of them."""
  for train_length in set(train_lengths):
    line = axes.axvline(train_length, color="0.3", linewidth=1, linestyle=":")
  return line


def legend_in_order(
    figure: Any, lines: Mapping[str, Any], last: Sequence[float], others: Any
) -> None:
  """Adds a legend that lists lines in the order of their last values.

  Args:
    figure: a matplotlib figure.
    lines: {label: line}.
    last: value at the right end of each line; NaN comes first, then the
      largest.
    others: {label: line} to list below them.
  """
  last = np.nan_to_num(np.array(last), nan=math.inf)
  order = np.argsort(-last, kind="stable")
  labels = list(lines)
  entries = {labels[i]: lines[labels[i]] for i in order} | others
  # Beside the axes or below them, so that it never hides a line.
  many = len(lines) > 4
  figure.legend(
      entries.values(),
      [textwrap.fill(plain(label), 38 if many else 90) for label in entries],
      loc="outside right upper" if many else "outside lower center",
      fontsize=8 if many else 9,
      frameon=False,
  )


def accuracy_figure(
    rows: Sequence[dict[str, Any]],
    path: os.PathLike,
    *,
    title: str,
    train_length: int | None = None,
    chance: float | None = None,
    ylabel: str = "accuracy",
) -> None:
  """Writes a PNG file of accuracy over length, one line per row.

  The line is the mean over seeds; the band is their range.

  Args:
    rows: each {"label": str, "lengths": [L], "accuracies": [seeds, L]}; NaN is
      not drawn.
    path: path of the file.
    title: title of the figure.
    train_length: marked by a vertical line unless None.
    chance: marked by a horizontal line unless None.
    ylabel: label of the y axis.
  """
  figure = new_figure(9, 5)
  axes = figure.add_subplot()
  lines, last, others = {}, [], {}
  for number, row in enumerate(rows):
    values_SxL = np.array(row["accuracies"], np.float64)
    mean = values_SxL.mean(axis=0)
    style = line_style(number)
    # Markers at hundreds of lengths would hide the line.
    style["markevery"] = math.ceil(len(row["lengths"]) / _MOST_TICKS)
    (lines[row["label"]],) = axes.plot(row["lengths"], mean, **style)
    last.append(mean[-1])
    if len(values_SxL) > 1:
      axes.fill_between(
          row["lengths"],
          values_SxL.min(axis=0),
          values_SxL.max(axis=0),
          color=style["color"],
          alpha=0.15,
          linewidth=0,
      )
  if train_length is not None:
    line = train_length_line(axes, [train_length])
    others[f"training length, {train_length}"] = line
  if chance is not None:
    line = axes.axhline(chance, color="0.5", linewidth=1, linestyle="--")
    others[f"chance, {chance:.3g}"] = line
  length_axis(axes, sorted({n for row in rows for n in row["lengths"]}))
  axes.set_ylim(-0.03, 1.03)
  axes.set_xlabel("length")
  axes.set_ylabel(ylabel)
  axes.set_title(plain(title), fontsize=11)
  legend_in_order(figure, lines, last, others)
  figure.savefig(path)


def heat_map_figure(
    panels: Mapping[str, np.ndarray],
    path: os.PathLike,
    *,
    title: str,
    columns: Sequence[Any],
    rows: Sequence[Any],
    xlabel: str,
    ylabel: str,
    value: str,
) -> None:
  """Writes a PNG file of heat maps of values from 0 to 1.

  Args:
    panels: {title: float [rows, columns]}; NaN (not measured) is gray.
    path: path of the file.
    title: title of the figure.
    columns, rows: tick labels, the first row at the top.
    xlabel, ylabel: labels of the axes.
    value: label of the color bar.
  """
  import matplotlib

  across = min(3, len(panels))
  down = math.ceil(len(panels) / across)
  figure = new_figure(1 + 3.4 * across, 1.6 + 2.2 * down)
  grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
  colors = matplotlib.colormaps["cividis"].with_extremes(bad="0.8")
  for axes, (name, matrix) in zip(grid.flat, panels.items()):
    matrix = np.array(matrix, np.float64)
    image = axes.imshow(matrix, cmap=colors, vmin=0, vmax=1, aspect="auto")
    axes.set_title(textwrap.fill(plain(name), 40), fontsize=9)
    axes.set_xticks(range(len(columns)), columns, fontsize=7, rotation=45)
    axes.set_yticks(range(len(rows)), rows, fontsize=7)
    if len(columns) <= 9 and len(panels) <= 9:
      for (row, column), entry in np.ndenumerate(matrix):
        axes.text(
            column,
            row,
            "" if math.isnan(entry) else f"{entry:.2f}",
            color="black" if entry > 0.6 else "white",
            fontsize=6,
            ha="center",
            va="center",
        )
  used, empty = grid.flat[: len(panels)], grid.flat[len(panels) :]
  for axes in empty:
    axes.remove()
  for axes in used[-across:]:
    axes.tick_params(labelbottom=True)
  figure.supxlabel(xlabel, fontsize=9)
  figure.supylabel(ylabel, fontsize=9)
  figure.suptitle(plain(title), fontsize=11)
  figure.colorbar(
      image, ax=list(used), label=value, location="top", shrink=0.5, aspect=40
  )
  figure.savefig(path)
