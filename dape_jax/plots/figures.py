"""DAPE's figures: the bias of one query, and maps of a short text's scores.

As the visualizations of Zheng et al. 2024, arXiv 2405.14722: the static bias, what
the network adds to it for the text at hand, and the result.
"""

import itertools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dape_jax.checkpoint.runs import Run, run_names
from dape_jax.errors import ConfigError
from dape_jax.evaluation.report import describe, new_figure
from dape_jax.plots.rows import Rows, encoding_of_layer

# Above this number of keys, neighboring keys share a point of the plot.
_POINTS = 256


def label_of(run: Run, name: str) -> str:
  """Returns a run's name with its encoding and training length."""
  return describe(
      {
          "name": name,
          "encoding": run.config.model.encoding,
          "train_length": run.config.data.length,
      }
  )


def layers_with_bias(run: Run, layers: list[int]) -> list[int]:
  """Returns the layers whose encoding adds to the scores.

  Raises:
    ConfigError: no layer's encoding does.
  """
  model = run.config.model
  found = [
      layer
      for layer in layers
      if encoding_of_layer(model, run.params, layer).score_mod() is not None
  ]
  if not found:
    which = "layer" if len(layers) == 1 else "layers"
    raise ConfigError(
        f"--layer: {which} {', '.join(map(str, layers))} of {run.checkpoint}"
        f" (encoding {model.encoding}): nothing is added to the scores, so there"
        " is no bias to plot; the subcommand map plots the scores."
    )
  return found


def _per_point(keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, ...]:
  """Returns mean key, and mean, minimum and maximum over neighboring keys.

  Args:
    keys: [s].
    values: [s].
  """
  size = -(-len(keys) // _POINTS)
  # Groups are counted from the query, so that the keys nearest to it are full.
  starts = np.arange(len(keys) % size, len(keys), size)
  if len(keys) % size:
    starts = np.concatenate([[0], starts])
  counts = np.diff([*starts, len(keys)])
  return (
      np.add.reduceat(keys, starts) / counts,
      np.add.reduceat(values, starts) / counts,
      np.minimum.reduceat(values, starts),
      np.maximum.reduceat(values, starts),
  )


def draw_bias(run: Run, rows: Rows, source: str, path: os.PathLike) -> None:
  """Plots static part, adaptive part and their sum over the keys.

  Args:
    run: the checkpoint.
    rows: of one query, the text's last token.
    source: description of the text.
    path: of the PNG file.
  """
  from matplotlib import ticker

  (query,) = rows.q_positions
  (visible,) = rows.visible
  keys = rows.kv_positions[visible]
  size = -(-len(keys) // _POINTS)
  figure = new_figure(14, 5)
  panels = {
      "static part B": rows.static,
      "adaptive part A - S - B": rows.adaptive,
      "sum A - S": rows.total,
  }
  colors = _head_colors(len(rows.scores))
  all_axes = figure.subplots(1, 3, sharex=True)
  for axes, (name, values) in zip(all_axes, panels.items()):
    for head, color in enumerate(colors):
      x, mean, low, high = _per_point(keys, values[head, 0, visible])
      if size > 1:
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
      # Dashes distinguish neighbors among many colors.
      style = "--" if len(colors) > 10 and head % 2 else "-"
      label = f"head {head}"
      axes.plot(x, mean, style, color=color, linewidth=1.2, label=label)
    axes.set_title(name, fontsize=11)
    axes.set_xlabel("key position (tokens)")
    axes.xaxis.set_major_locator(ticker.MaxNLocator(nbins=6, integer=True))
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
  all_axes[0].set_ylabel("added to the scaled score (logits)")
  note = f"mean of {size}\nneighboring keys;\nshade: their range"
  handles, labels = all_axes[0].get_legend_handles_labels()
  figure.legend(
      handles,
      labels,
      loc="outside right upper",
      fontsize=9,
      frameon=False,
      title=note if size > 1 else None,
      title_fontsize=8,
      ncols=-(-len(labels) // 20),
  )
  figure.suptitle(
      f"{_title(run, rows.layer)}\nbias of the query at position {query:,} of"
      f" {source}",
      fontsize=12,
  )
  figure.savefig(path)


def statistics(rows: Rows) -> dict[str, float]:
  """Returns the root mean squares of the parts over visible keys."""

  def size(values):
    seen = np.float64(values[:, rows.visible])
    return float(np.sqrt(np.mean(np.square(seen))))

  parts = ("scores", "static", "adaptive", "total")
  return {part: size(getattr(rows, part)) for part in parts}


def draw_map(
    run: Run, rows: Rows, heads: Sequence[int], source: str, path: os.PathLike
) -> None:
  """Plots maps of B, A - S - B and A, one row per head.

  Columns that are 0 everywhere, for encodings without a static bias or without a
  network, are left out, and the title says so.

  Args:
    run: the checkpoint.
    rows: of all queries of the text.
    heads: heads to plot.
    source: description of the text.
    path: of the PNG file.
  """
  columns = {
      "static part B": rows.static,
      "adaptive part A - S - B": rows.adaptive,
      "scores A, of the softmax": rows.scores + rows.total,
  }
  zero = [n for n, x in columns.items() if not np.any(x[:, rows.visible])]
  drawn = {n: x for n, x in columns.items() if n not in zero} or columns
  shape = len(heads), len(drawn)
  if len(drawn) == 1:
    shape = shape[::-1]
  # Wide enough for the title.
  width = max(3.3 * shape[1] + 0.5, 7)
  figure = new_figure(width, 2.6 * shape[0] + 1)
  grid = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False)
  ends = (rows.kv_positions[0] - 0.5, rows.kv_positions[-1] + 0.5)
  panels = itertools.product(heads, drawn.items())
  for axes, (head, (name, values)) in zip(grid.flat, panels):
    signed = name.startswith("adaptive")
    shown = np.ma.array(values[head], mask=~rows.visible)
    # White means nothing was added.
    bound = np.abs(shown).max() if signed else None
    image = axes.imshow(
        shown,
        extent=(*ends, *ends[::-1]),
        cmap="RdBu" if signed else "viridis",
        vmin=-bound if signed else None,
        vmax=bound,
        interpolation="nearest",
        aspect="equal",
    )
    axes.set_facecolor("0.85" if signed else "1")
    bar = figure.colorbar(image, ax=axes, shrink=0.9)
    bar.ax.set_title("logits", fontsize=7)
    bar.ax.tick_params(labelsize=7)
    axes.set_title(f"head {head}: {name}", fontsize=9)
    axes.tick_params(labelsize=8)
  for axes in grid[:, 0]:
    axes.set_ylabel("query position (tokens)", fontsize=8)
  for axes in grid[-1]:
    axes.set_xlabel("key position (tokens)", fontsize=8)
  note = f"\nzero everywhere: {', '.join(zero)}" if zero else ""
  figure.suptitle(
      f"{_title(run, rows.layer)}\nfirst {len(rows.q_positions):,} tokens of"
      f" {source}{note}",
      fontsize=11,
  )
  figure.savefig(path)


def _head_colors(num_heads: int) -> list[Any]:
  """Returns one color per head, as distinct as their number allows."""
  import matplotlib

  if num_heads <= 10:
    return [f"C{head}" for head in range(num_heads)]
  colors = matplotlib.colormaps["turbo"](np.linspace(0.02, 0.98, num_heads))
  return list(colors)


def _title(run: Run, layer: int) -> str:
  (name,) = run_names([run])
  model = run.config.model
  title = (
      f"{label_of(run, name)}, step {run.step}, layer {layer} of"
      f" {model.num_layers}"
  )
  own, _ = model.layer_kinds[layer % len(model.layer_kinds)]
  return title if own == model.encoding else f"{title} ({own})"
