"""Maps of a short text's scores: static bias, what the network adds, result."""

import itertools
import os
from collections.abc import Sequence

import numpy as np

from dape_jax.checkpoint.runs import Run
from dape_jax.errors import ConfigError
from dape_jax.evaluation.report import new_figure
from dape_jax.plots.files import title_of
from dape_jax.plots.rows import Rows

# Heads of a picture without --heads.
_DEFAULT_HEADS = 4


def choose_heads(run: Run, text: str | None) -> list[int]:
  """Returns the heads that a comma list names; None is the first few.

  Raises:
    ConfigError: there is no such head.
  """
  num_heads = run.config.model.num_heads
  if text is None:
    return list(range(min(num_heads, _DEFAULT_HEADS)))
  heads = text.split(",")
  for head in heads:
    if not head.strip().isdecimal() or int(head) >= num_heads:
      raise ConfigError(
          f"--heads={text}: {head!r} is none of the heads 0 to"
          f" {num_heads - 1} of {run.checkpoint}; write for example 0,1."
      )
  return list(dict.fromkeys(map(int, heads)))


def draw_map(
    run: Run, rows: Rows, heads: Sequence[int], source: str, path: os.PathLike
) -> None:
  """Draws B, A - S - B and A of each head, one head a row, as a PNG file.

  Columns that are 0 everywhere, of encodings without a static bias or without a
  network, are left out; the title says so.

  Args:
    run: the checkpoint.
    rows: of all queries of the text.
    heads: which to draw.
    source: of the text.
    path: of the PNG file.
  """
  columns = {
      "static part B": rows.static,
      "adaptive part A - S - B": rows.adaptive,
      "scores A, of the softmax": rows.scores + rows.total,
  }
  hidden = ~rows.visible
  drawn, zero = {}, []
  for name, values in columns.items():
    if np.any(values[:, rows.visible]):
      drawn[name] = values
    else:
      zero.append(name)
  drawn = drawn or columns
  shape = len(heads), len(drawn)
  if len(drawn) == 1:
    shape = shape[::-1]
  # Wide enough for the title, whatever is drawn.
  width = max(3.3 * shape[1] + 0.5, 7)
  figure = new_figure(width, 2.6 * shape[0] + 1)
  grid = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False)
  ends = (rows.kv_positions[0] - 0.5, rows.kv_positions[-1] + 0.5)
  panels = itertools.product(heads, drawn.items())
  for axes, (head, (name, values)) in zip(grid.flat, panels):
    signed = name.startswith("adaptive")
    shown = np.ma.array(values[head], mask=hidden)
    # White is nothing added.
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
      f"{title_of(run, rows.layer)}\nfirst {len(rows.q_positions):,} tokens of"
      f" {source}{note}",
      fontsize=11,
  )
  figure.savefig(path)
