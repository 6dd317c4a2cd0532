"""Tables and pictures of a grid of generated tasks."""

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


def _grouped(results: Results, key: Callable) -> dict[str, list]:
  groups = collections.defaultdict(list)
  for result in results:
    groups[key(result)].append(result)
  return groups


def _title(result: dict[str, Any]) -> str:
  """Returns the task scored, with the task of training if it is another."""
  task, scored_on = result["task"], result["scored_on"]
  return scored_on if task == scored_on else f"{scored_on} after {task}"


def _by_task(results: Results) -> dict[str, list]:
  """Returns the results of each table: scored on a task after the same one."""
  return _grouped(results, _title)


def _by_encoding(results: Results) -> dict[str, list]:
  return _grouped(results, lambda result: result["encoding"])


def papers_table(results: Results) -> str:
  """Returns tasks down, encodings across: best and mean over seeds.

  Of the mean accuracy over the lengths beyond the training length, in percent, as
  the tables of arXiv 2305.16843 and 2405.14722 have it.
  """
  encodings = list(dict.fromkeys(r["encoding"] for r in results))
  rows = []
  for title, runs in _by_task(results).items():
    cells = []
    for encoding in encodings:
      scores = [
          100 * mean_accuracy(r["rows"], r["train_length"])
          for r in runs
          if r["encoding"] == encoding
      ]
      cells.append(
          f"{max(scores):.1f} / {np.mean(scores):.1f}" if scores else ""
      )
    rows.append([title, runs[0]["form"], *cells])
  return _markdown(["task", "form", *encodings], rows)


def task_table(results: Results) -> str:
  """Returns encodings down, lengths across: mean and sample std over seeds.

  The last two columns are the best and the mean seed of the mean over the lengths
  beyond the training length.

  Args:
    results: of one task.
  """
  lengths = [row["length"] for row in results[0]["rows"]]
  # A range of hundreds of lengths has no column for each.
  shown = lengths if len(lengths) <= 10 else []
  rows = []
  for encoding, runs in _by_encoding(results).items():
    accuracies = np.array([[x["accuracy"] for x in r["rows"]] for r in runs])
    means = accuracies.mean(axis=0)
    stds = accuracies.std(axis=0, ddof=1) if len(runs) > 1 else None
    cells = [
        f"{means[i]:.3f}" + (f" ± {stds[i]:.3f}" if stds is not None else "")
        for i in range(len(shown))
    ]
    scores = [mean_accuracy(r["rows"], r["train_length"]) for r in runs]
    rows.append(
        [encoding, *cells, f"{max(scores):.3f}", f"{np.mean(scores):.3f}"]
    )
  header = ["encoding", *map(str, shown), "beyond: best", "mean"]
  return _markdown(header, rows)


def _heading(runs: Results) -> str:
  """Returns how a task was trained and scored, one sentence."""
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
      f" {first['rows'][0]['samples']} problems a length. A constant answer has"
      f" {first['chance']:.3f}"
  )
  if first["chance_by_place"] is not None:
    text += f", one that knows the place alone {first['chance_by_place']:.3f}"
  return text + "."


def report(results: Results) -> str:
  """Returns all tables of a grid, in Markdown."""
  seeds = sorted({r["seed"] for r in results})
  parts = [
      "Accuracy beyond the training length in percent, mean over lengths; best /"
      f" mean of {len(seeds)} seeds.\n\n{papers_table(results)}"
  ]
  for title, runs in _by_task(results).items():
    parts.append(f"## {title}\n\n{_heading(runs)}\n\n{task_table(runs)}")
  return "\n\n".join(parts) + "\n"


def write_figures(results: Results, folder: pathlib.Path) -> list[pathlib.Path]:
  """Draws accuracy over length, a PNG file a task; returns their paths."""
  paths = []
  for title, runs in _by_task(results).items():
    rows = [
        {
            "label": encoding,
            "lengths": [row["length"] for row in group[0]["rows"]],
            "accuracies": [
                [row["accuracy"] for row in run["rows"]] for run in group
            ],
        }
        for encoding, group in _by_encoding(runs).items()
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
