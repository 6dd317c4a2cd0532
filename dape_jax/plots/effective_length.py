"""KERPLE's figure: the cumulative distribution of the heads' effective lengths.

Chi et al. 2022, section A.5, arXiv 2205.09921: the effective length of a head is
the smallest distance at which its static bias is below -2, that is, at which a
key keeps less than exp(-2) = 14% of the weight that its score gives it.
"""

import os
import sys
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from dape_jax.checkpoint.runs import Run
from dape_jax.encodings.effective_length import (
    bias_of_distances,
    effective_lengths,
)
from dape_jax.encodings.modifiers import SoftCapTile
from dape_jax.encodings.tile import Tile
from dape_jax.errors import ConfigError
from dape_jax.evaluation.report import new_figure
from dape_jax.models.layer_encodings import is_shared
from dape_jax.plots.figures import label_of
from dape_jax.plots.rows import encoding_of_layer


def lengths_of_run(run: Run, max_distance: int) -> dict[int, np.ndarray]:
  """Returns the effective length of each head in layers with a static bias.

  Effective lengths above max_distance are max_distance + 1. If the bias also
  depends on the query's position (FIRE), the query is at max_distance. Layers
  without a static bias are left out.

  Args:
    run: the checkpoint.
    max_distance: the largest distance to evaluate.

  Returns:
    {layer: int [N]}; only layer 0 if all layers share the encoding.

  Raises:
    ConfigError: no layer has a static bias.
  """
  model = run.config.model
  layers = range(1 if is_shared(model) else model.num_layers)
  lengths, reasons = {}, {}
  for layer in layers:
    encoding = encoding_of_layer(model, run.params, layer)
    name, window = model.layer_kinds[layer % len(model.layer_kinds)]
    reason = _why_none(encoding)
    if reason is None:
      bias = bias_of_distances(encoding, encoding.variables, max_distance)
      lengths[layer] = effective_lengths(bias, max_distance)
      if window:  # The first invisible key is at this distance.
        lengths[layer] = np.minimum(lengths[layer], window)
    else:
      reasons[name] = reason
  why = "; ".join(f"{name} {reason}" for name, reason in reasons.items())
  if not lengths:
    raise ConfigError(
        f"{run.checkpoint}: encoding {why}, so its heads have no effective"
        " length; choose checkpoints of encodings with a static bias, or plot"
        " this one with the subcommand bias."
    )
  if why:
    print(f"{run.checkpoint}: layers left out: {why}", file=sys.stderr)
  return lengths


def _why_none(encoding) -> str | None:
  """Returns why the encoding has no static bias, or None if it has one."""
  score_mod = encoding.score_mod()
  if score_mod is None:
    return "adds nothing to the scores"
  if isinstance(score_mod.function, SoftCapTile):
    return "caps the sum of score and bias"
  if encoding.key_features:
    return "has a bias that depends on the tokens"
  tile = Tile(jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 1), jnp.int32))
  bias = score_mod.function.bias(score_mod.params, tile, jnp.float32)
  return "has no static bias" if bias is None else None


def depends_on_position(run: Run, max_distance: int) -> bool:
  """Returns whether the bias also depends on the query's position (FIRE)."""
  model = run.config.model
  for layer in range(len(model.layer_kinds)):
    encoding = encoding_of_layer(model, run.params, layer)
    if _why_none(encoding) is None:
      half = max_distance // 2
      distances = np.unique(np.geomspace(1, half + 1, 64).astype(int)) - 1
      near, far = (
          np.asarray(
              bias_of_distances(encoding, encoding.variables, query)(distances)
          )
          for query in (half, max_distance)
      )
      if not np.allclose(near, far, rtol=1e-3, atol=1e-3):
        return True
  return False


def write_lengths(
    runs: Sequence[Run],
    names: Sequence[str],
    lengths: Sequence[dict[int, np.ndarray]],
    path: os.PathLike,
    max_distance: int,
) -> None:
  """Writes a CSV file: run, encoding, layer, head, effective_length.

  Lengths above max_distance are empty; the layer is "all" if the layers share one
  encoding.

  Args:
    runs, names: the checkpoints and their names.
    lengths: of each run, from `lengths_of_run`.
    path: of the file.
    max_distance: as in `lengths_of_run`.
  """
  with open(path, "w") as stream:
    print("run,encoding,layer,head,effective_length", file=stream)
    for run, name, of_run in zip(runs, names, lengths, strict=True):
      kinds = run.config.model.layer_kinds
      for layer, of_heads in of_run.items():
        encoding, _ = kinds[layer % len(kinds)]
        shown = "all" if is_shared(run.config.model) else layer
        for head, length in enumerate(of_heads):
          found = length if length <= max_distance else ""
          print(name, encoding, shown, head, found, sep=",", file=stream)


def draw_lengths(
    runs: Sequence[Run],
    names: Sequence[str],
    lengths: Sequence[dict[int, np.ndarray]],
    path: os.PathLike,
    max_distance: int,
) -> None:
  """Plots the number of heads with an effective length of at most d, over d.

  Args:
    runs, names, lengths, max_distance: as in `write_lengths`.
    path: of the PNG file.
  """
  from matplotlib import ticker

  lines_of_legend = -(-(len(runs) + 1) // 2)
  figure = new_figure(8, 4.5 + 0.4 * lines_of_legend)
  axes = figure.add_subplot()
  axes.set_xscale("log", base=2)
  train_lengths = {run.config.data.length for run in runs}
  largest = 0
  for number, (run, name, of_run) in enumerate(
      zip(runs, names, lengths, strict=True)
  ):
    flat = np.sort(np.concatenate(list(of_run.values())))
    within = flat[flat <= max_distance]
    x = np.concatenate([[1], within, [max_distance]])
    y = np.concatenate([[0], np.arange(1, len(within) + 1), [len(within)]])
    label = (
        f"{label_of(run, name)}\n{len(within)} of {len(flat)} heads below -2"
    )
    if depends_on_position(run, max_distance):
      label += f", seen from position {max_distance:,}"
    color = f"C{number % 10}"
    axes.step(x, y, where="post", color=color, linewidth=2, label=label)
    largest = max(largest, len(flat))
  for train_length in train_lengths:
    axes.axvline(train_length, color="0.2", linewidth=1, linestyle=":")
  axes.plot(
      [], [], color="0.2", linewidth=1, linestyle=":", label="training length"
  )
  axes.set_xlim(1, max_distance)
  axes.set_ylim(0, largest * 1.05)
  axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:.0f}"))
  axes.yaxis.set_major_locator(ticker.MaxNLocator(nbins=8, integer=True))
  axes.grid(color="0.9")
  axes.set_axisbelow(True)
  axes.set_xlabel("distance d (tokens)")
  axes.set_ylabel("heads with effective length of at most d")
  axes.set_title(
      "Effective length: smallest distance with a static bias below -2",
      fontsize=11,
  )
  figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)
  figure.savefig(path)
