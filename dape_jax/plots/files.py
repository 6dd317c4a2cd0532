"""What the pictures have in common: canvas, titles, files."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from dape_jax.checkpoint.runs import Run, run_names
from dape_jax.evaluation.report import describe
from dape_jax.plots.rows import Rows


def head_colors(num_heads: int) -> list[Any]:
  """Returns a colour for each head, as different as their number allows."""
  import matplotlib

  if num_heads <= 10:
    return [f"C{head}" for head in range(num_heads)]
  colors = matplotlib.colormaps["turbo"](np.linspace(0.02, 0.98, num_heads))
  return list(colors)


def title_of(run: Run, layer: int) -> str:
  """Returns checkpoint, encoding, step and layer in one line."""
  (name,) = run_names([run])
  model = run.config.model
  described = describe(
      {
          "name": name,
          "encoding": model.encoding,
          "train_length": run.config.data.length,
      }
  )
  title = f"{described}, step {run.step}, layer {layer} of {model.num_layers}"
  own, _ = model.layer_kinds[layer % len(model.layer_kinds)]
  return title if own == model.encoding else f"{title} ({own})"


def stem_of(run: Run) -> str:
  """Returns the part of a file's name that stands for a run."""
  (name,) = run_names([run])
  return f"{name}_step{run.step}"


def write_rows(
    rows: Rows, path: os.PathLike, *, heads: Sequence[int], with_query: bool
) -> pathlib.Path:
  """Writes rows as a CSV file, a line for each pair of query and visible key.

  Columns: layer, head, query (if asked for), key, distance, score (S), static
  (B), adaptive (A - S - B) and total (A - S).

  Args:
    rows: of one layer.
    path: of the file.
    heads: which to write.
    with_query: with the query's position, for more than one of them.
  """
  query, key = np.nonzero(rows.visible)
  q_position, kv_position = rows.q_positions[query], rows.kv_positions[key]
  names = ["layer", "head", "key", "distance"]
  names += ["score", "static", "adaptive", "total"]
  formats = ["%d"] * 4 + ["%.9g"] * 4
  if with_query:
    names.insert(2, "query")
    formats.insert(2, "%d")
  with open(path, "w") as file:
    file.write(",".join(names) + "\n")
    for head in heads:
      columns = [np.full(len(key), rows.layer), np.full(len(key), head)]
      columns += [q_position] if with_query else []
      columns += [kv_position, q_position - kv_position]
      columns += [
          values[head, query, key]
          for values in (rows.scores, rows.static, rows.adaptive, rows.total)
      ]
      np.savetxt(file, np.stack(columns, 1), fmt=formats, delimiter=",")
  return pathlib.Path(path)
