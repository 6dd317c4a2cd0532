"""The folder of a report: its files, one written after the other."""

import os
import pathlib
import sys
from typing import Any

from dape_jax.evaluation.report import (
    details,
    figures,
    perplexity_figures,
    retrieval,
    tables,
)
from dape_jax.evaluation.report.markup import as_markdown
from dape_jax.evaluation.report.page import page
from dape_jax.evaluation.report.results_file import write_json
from dape_jax.evaluation.report.subjects import subjects

# Whatever the terminal's is; folders may have names that are no text.
_UTF8 = {"encoding": "utf-8", "errors": "replace"}


def _file_name(task: str) -> str:
  return "".join(c if c.isalnum() or c in "-_" else "-" for c in task)


def _draw(
    results: dict[str, Any], folder: pathlib.Path
) -> dict[pathlib.Path, str]:
  """Draws the pictures; returns {path: what it shows}."""
  compared = subjects(results)
  names = ", ".join(perplexity_figures.labels(compared))
  path = folder / "perplexity.png"
  perplexity_figures.perplexity_figure(results, path)
  pictures = {
      path: (
          f"Perplexity over context length of {names}. Dashed: crop baseline."
          " Bands: the range of the seeds, or of a single run the 95% bootstrap"
          " interval over documents."
      )
  }
  if results["runs"][0]["positions"]:
    path = folder / "positions.png"
    perplexity_figures.position_figure(results, path)
    pictures[path] = f"Loss by position of {names}. Dashed: crop baseline."
  lengths = retrieval.lengths(results)
  labels = perplexity_figures.labels(compared)
  train_lengths = {subject.train_length for subject in compared}
  for task in retrieval.tasks(results):
    path = folder / f"retrieval_{_file_name(task)}.png"
    figures.accuracy_figure(
        [
            {
                "label": label,
                "lengths": lengths,
                "accuracies": retrieval.scores(
                    subject, task, lengths, "exact_match"
                ),
            }
            for subject, label in zip(compared, labels)
        ],
        path,
        title=f"Retrieval: {task}",
        # The labels name different ones.
        train_length=min(train_lengths) if len(train_lengths) == 1 else None,
        ylabel="exact match",
    )
    pictures[path] = f"Exact match of {task} over length of {names}."
    depths = retrieval.depths(results, task)
    if not depths:
      continue
    path = folder / f"needle_{_file_name(task)}.png"
    figures.heat_map_figure(
        {
            run["name"]: retrieval.by_depth(run, task, depths, lengths)
            for run in results["runs"]
        },
        path,
        title=f"Retrieval by depth: {task}",
        columns=lengths,
        rows=[f"{depth:.0%}" for depth in depths],
        xlabel="length (tokens)",
        ylabel="depth of what is to be found",
        value="exact match",
    )
    pictures[path] = f"Exact match of {task} by length and depth, run by run."
  return pictures


def _clear(folder: pathlib.Path) -> None:
  """Removes the pictures of a report that is there, and says so."""
  if not (folder / "results.json").exists():
    return
  print(f"{folder}: the report that was there is replaced.", file=sys.stderr)
  for pattern in (
      "perplexity.png",
      "positions.png",
      "retrieval_*.png",
      "needle_*.png",
  ):
    for path in folder.glob(pattern):
      path.unlink()


def write(results: dict[str, Any], folder: os.PathLike) -> list[pathlib.Path]:
  """Writes a report: results.json, table.md, pictures, report.html.

  Pictures are perplexity.png, positions.png for the protocol "positionwise",
  and for each task of retrieval retrieval_TASK.png and, if it has depths,
  needle_TASK.png. report.html holds all of them and all tables.

  Args:
    results: see `results_file`.
    folder: that exists; one for each report: one that is there is replaced, and
      that is said on stderr.

  Returns:
    The paths written, results.json first, report.html last.
  """
  folder = pathlib.Path(folder)
  _clear(folder)
  json_path = folder / "results.json"
  # First of all, so that a failure below costs a picture and no results.
  write_json(results, json_path)
  shown, folded = tables.main_tables(results), details.detail_tables(results)
  table_path = folder / "table.md"
  table_path.write_text(
      f"{tables.summary(results)}\n\n" + "\n".join(map(as_markdown, shown)),
      **_UTF8,
  )
  pictures = _draw(results, folder)
  page_path = folder / "report.html"
  page_path.write_text(page(results, pictures, shown, folded), **_UTF8)
  return [json_path, table_path, *pictures, page_path]
