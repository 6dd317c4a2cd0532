"""Tables and figures of a grid of generated tasks."""

import collections
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from dape_jax.evaluation.report import accuracy_figure
from dape_jax.evaluation.tasks.accuracy import mean_accuracy

Results = Sequence[dict[str, Any]]


def _markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
  table = [list(header), *map(list, rows)]
  widths = [max(map(len, column)) for column in zip(*table, strict=True)]
  lines = [
      "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths)) + " |"
      for line in table
  ]
  rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
  return "\n".join([lines[0], rule, *lines[1:]])


def _by(results: Results, key: Callable[[dict[str, Any]], str]) -> dict:
  """Returns {key: results}, in order of appearance."""
  groups = collections.defaultdict(list)
  for result in results:
    groups[key(result)].append(result)
  return groups


def _title(result: dict[str, Any]) -> str:
  """Returns the scored task, with the training task if it differs."""
  task, scored_on = result["task"], result["scored_on"]
  return scored_on if task == scored_on else f"{scored_on} after {task}"


def _encoding(result: dict[str, Any]) -> str:
  return result["encoding"]


def _beyond(runs: Results) -> list[float]:
  """Returns each run's mean accuracy beyond the training length."""
  return [mean_accuracy(run["rows"], run["train_length"]) for run in runs]


def papers_table(results: Results) -> str:
  """Returns a table of tasks by encodings: best and mean over seeds.

  A score is the mean accuracy in percent over the lengths beyond the training
  length, as in the tables of arXiv 2305.16843 and 2405.14722.
  """
  encodings = list(_by(results, _encoding))
  rows = []
  for title, runs in _by(results, _title).items():
    by_encoding = _by(runs, _encoding)
    cells = []
    for encoding in encodings:
      scores = [100 * score for score in _beyond(by_encoding[encoding])]
      cells.append(
          f"{max(scores):.1f} / {np.mean(scores):.1f}" if scores else ""
      )
    rows.append([title, runs[0]["form"], *cells])
  return _markdown(["task", "form", *encodings], rows)


def task_table(results: Results) -> str:
  """Returns a table of encodings by lengths: mean and sample std over seeds.

  The last two columns are the best and the mean over seeds of the mean accuracy
  beyond the training length.

  Args:
    results: results of one task.
  """
  lengths = [row["length"] for row in results[0]["rows"]]
  # A range of hundreds of lengths gets no columns.
  shown = lengths if len(lengths) <= 10 else []
  rows = []
  for encoding, runs in _by(results, _encoding).items():
    accuracies = np.array([[x["accuracy"] for x in r["rows"]] for r in runs])
    cells = [f"{mean:.3f}" for mean in accuracies.mean(axis=0)[: len(shown)]]
    if len(runs) > 1:
      stds = accuracies.std(axis=0, ddof=1)
      cells = [f"{cell} ± {std:.3f}" for cell, std in zip(cells, stds)]
    scores = _beyond(runs)
    rows.append(
        [encoding, *cells, f"{max(scores):.3f}", f"{np.mean(scores):.3f}"]
    )
  header = ["encoding", *map(str, shown), "beyond: best", "mean"]
  return _markdown(header, rows)


def _heading(runs: Results) -> str:
  """Returns sentences on how a task was trained and scored."""
  first = runs[0]
  lengths = [row["length"] for row in first["rows"]]
  trained = "Trained and scored"
  if first["task"] != first["scored_on"]:
    trained = f"Trained on {first['task']}, scored"
  drawn = first["max_position"]
  positions = f" on randomized positions below {drawn}" if drawn else ""
  text = (
      f"{trained} as {'an' if first['form'] == 'encoder' else 'a'}"
      f" {first['form']}{positions}: {first['step']} steps up to length"
      f" {first['train_length']}, scored at {lengths[0]} to {lengths[-1]} with"
      f" {first['rows'][0]['samples']} problems per length. A constant answer"
      f" scores {first['chance']:.3f}"
  )
  if first["chance_by_place"] is not None:
    text += (
        ", one that depends only on the position"
        f" {first['chance_by_place']:.3f}"
    )
  return text + "."


def report(results: Results) -> str:
  """Returns all tables of a grid as Markdown."""
  seeds = sorted({r["seed"] for r in results})
  parts = [
      "Accuracy beyond the training length in percent, mean over lengths; best"
      f" / mean of {len(seeds)} seeds.\n\n{papers_table(results)}"
  ]
  for title, runs in _by(results, _title).items():
    parts.append(f"## {title}\n\n{_heading(runs)}\n\n{task_table(runs)}")
  return "\n\n".join(parts) + "\n"


def write_figures(results: Results, folder: pathlib.Path) -> list[pathlib.Path]:
  """Writes a PNG file of accuracy over length per task; returns the paths."""
  paths = []
  for title, runs in _by(results, _title).items():
    rows = [
        {
            "label": encoding,
            "lengths": [row["length"] for row in group[0]["rows"]],
            "accuracies": [
                [row["accuracy"] for row in run["rows"]] for run in group
            ],
        }
        for encoding, group in _by(runs, _encoding).items()
    ]
    paths.append(folder / f"{title.replace(' ', '_')}.png")
    accuracy_figure(
        rows,
        paths[-1],
        title=f"{title} ({runs[0]['form']})",
        train_length=runs[0]["train_length"],
        chance=runs[0]["chance"],
    )
  return paths
