"""DAPE's figure: the bias that a query gives to the keys before it.

As the visualisations of arXiv 2405.14722: the static bias, what the network adds
to it for the text at hand, and their sum, for every head of a layer.
"""

import os
from typing import Any

import numpy as np

from dape_jax.checkpoint.runs import Run
from dape_jax.errors import ConfigError
from dape_jax.evaluation.report import new_figure
from dape_jax.plots.files import head_colors, title_of
from dape_jax.plots.rows import Rows, encoding_of_layer

# More keys than this are drawn as means of neighbours, within their range.
_POINTS = 256


def layers_with_bias(run: Run, layers: list[int]) -> list[int]:
  """Returns those of the layers whose encoding adds something to the scores.

  Raises:
    ConfigError: none of them does.
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
        " is no bias to draw; the sub-command map draws the scores."
    )
  return found


def _per_point(keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, ...]:
  """Returns key, mean, minimum and maximum of neighbouring keys.

  Args:
    keys: [s].
    values: [s].
  """
  size = -(-len(keys) // _POINTS)
  # From the query on backwards: it is what the neighbours nearest to it show.
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
  """Draws static part, adaptive part and sum over the keys, as a PNG file.

  Args:
    run: the checkpoint.
    rows: of one query, the text's last token.
    source: of the text.
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
  colors = head_colors(len(rows.scores))
  all_axes = figure.subplots(1, 3, sharex=True)
  for axes, (name, values) in zip(all_axes, panels.items()):
    for head, color in enumerate(colors):
      x, mean, low, high = _per_point(keys, values[head, 0, visible])
      if size > 1:
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
      # Neighbours among many colours are told apart by their dashes.
      style = "--" if len(colors) > 10 and head % 2 else "-"
      label = f"head {head}"
      axes.plot(x, mean, style, color=color, linewidth=1.2, label=label)
    axes.set_title(name, fontsize=11)
    axes.set_xlabel("key position (tokens)")
    axes.xaxis.set_major_locator(ticker.MaxNLocator(nbins=6, integer=True))
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
  all_axes[0].set_ylabel("added to the scaled score (logits)")
  note = f"mean of {size}\nneighbouring keys;\nshade: their range"
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
      f"{title_of(run, rows.layer)}\nbias of the query at position {query:,} of"
      f" {source}",
      fontsize=12,
  )
  figure.savefig(path)


def statistics(rows: Rows) -> dict[str, Any]:
  """Returns how large the parts are: root mean squares over visible keys."""
  visible = np.broadcast_to(rows.visible[None], rows.scores.shape)

  def size(values):
    return float(np.sqrt(np.mean(np.square(values[visible], dtype=np.float64))))

  return {
      "scores": size(rows.scores),
      "static": size(rows.static),
      "adaptive": size(rows.adaptive),
      "total": size(rows.total),
  }
