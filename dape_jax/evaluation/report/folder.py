"""The folder of a report: results.json, table.md, figures and report.html."""

import base64
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from dape_jax.evaluation.report import perplexity_figures, tables
from dape_jax.evaluation.report.figures import accuracy_figure, heat_map_figure
from dape_jax.evaluation.report.results_file import write_json
from dape_jax.evaluation.report.subjects import (
    labels,
    retrieval_by_depth,
    retrieval_values,
    subjects,
)
from dape_jax.evaluation.report.text import as_markdown

# Independent of the locale; folder names may be invalid Unicode.
_UTF8 = {"encoding": "utf-8", "errors": "replace"}
_TEMPLATE = pathlib.Path(__file__).parent / "page.html.jinja"
_FIGURES = "perplexity.png", "positions.png", "retrieval_*.png", "needle_*.png"


def write(results: dict[str, Any], folder: os.PathLike) -> list[pathlib.Path]:
  """Writes a report: results.json, table.md, figures and report.html.

  The figures are perplexity.png, positions.png for the protocol "positionwise",
  and for each retrieval task retrieval_TASK.png and, if it has depths,
  needle_TASK.png. report.html holds all figures and tables.

  Args:
    results: see `results_file`.
    folder: an existing folder. A report in it is replaced, with a message on
      stderr.

  Returns:
    The paths written, results.json first, report.html last.
  """
  folder = pathlib.Path(folder)
  results_path = folder / "results.json"
  if results_path.exists():
    print(f"{folder}: replacing the existing report.", file=sys.stderr)
    for pattern in _FIGURES:
      for path in folder.glob(pattern):
        path.unlink()
  # Written first, so that a failure below does not lose the results.
  write_json(results, results_path)
  shown = tables.main_tables(results)
  table_path = folder / "table.md"
  table_path.write_text(
      f"{tables.summary(results)}\n\n" + "\n".join(map(as_markdown, shown)),
      **_UTF8,
  )
  figures = _draw(results, folder)
  page_path = folder / "report.html"
  page_path.write_text(_page(results, figures, shown), **_UTF8)
  return [results_path, table_path, *figures, page_path]


def _draw(
    results: dict[str, Any], folder: pathlib.Path
) -> dict[pathlib.Path, str]:
  """Draws the figures; returns {path: caption}."""
  compared = subjects(results)
  names = ", ".join(labels(compared))
  path = folder / "perplexity.png"
  perplexity_figures.perplexity_figure(results, path)
  captions = {
      path: (
          f"Perplexity over context length of {names}. Dashed: crop baseline."
          " Bands: the range over seeds, or the 95% bootstrap interval over"
          " documents of a single run."
      )
  }
  if results["runs"][0]["positions"]:
    path = folder / "positions.png"
    perplexity_figures.position_figure(results, path)
    captions[path] = f"Loss by position of {names}. Dashed: crop baseline."
  lengths = retrieval_values(results, "length")
  train_lengths = {subject.train_length for subject in compared}
  for task in retrieval_values(results, "task"):
    file_name = "".join(c if c.isalnum() or c in "-_" else "-" for c in task)
    path = folder / f"retrieval_{file_name}.png"
    accuracy_figure(
        [
            {
                "label": label,
                "lengths": lengths,
                "accuracies": subject.retrieval(task, lengths, "exact_match"),
            }
            for subject, label in zip(compared, labels(compared))
        ],
        path,
        title=f"Retrieval: {task}",
        # If they differ, the labels show them.
        train_length=min(train_lengths) if len(train_lengths) == 1 else None,
        ylabel="exact match",
    )
    captions[path] = f"Exact match of {task} over length of {names}."
    depths = retrieval_values(results, "depth", task)
    if not depths:
      continue
    path = folder / f"needle_{file_name}.png"
    heat_map_figure(
        {
            run["name"]: retrieval_by_depth(run, task, depths, lengths)
            for run in results["runs"]
        },
        path,
        title=f"Retrieval by depth: {task}",
        columns=lengths,
        rows=[f"{depth:.0%}" for depth in depths],
        xlabel="length (tokens)",
        ylabel="depth of the needle",
        value="exact match",
    )
    captions[path] = f"Exact match of {task} by length and depth, for each run."
  return captions


def _page(
    results: dict[str, Any],
    figures: Mapping[pathlib.Path, str],
    shown: Sequence[tables.Table],
) -> str:
  """Returns a self-contained HTML page without scripts."""
  names = ", ".join(dict.fromkeys(run["encoding"] for run in results["runs"]))
  stride = results["stride"]
  environment = jinja2.Environment(
      autoescape=True,
      trim_blocks=True,
      lstrip_blocks=True,
      undefined=jinja2.StrictUndefined,
  )
  return environment.from_string(_TEMPLATE.read_text("utf-8")).render(
      title=f"Length extrapolation: {names}",
      summary=tables.summary(results),
      warnings=tables.not_finite(results),
      figures=[
          (base64.b64encode(path.read_bytes()).decode(), caption)
          for path, caption in figures.items()
      ],
      tables=shown,
      details=tables.detail_tables(results),
      facts={
          "Command": results["command"],
          "Corpus": f"{results['source']}, {results['corpus_fingerprint']}",
          "Tokenizer": results["tokenizer"],
          "Split": results["split"],
          "Protocol": results["protocol"],
          "Stride": "none" if stride is None else stride,
          "Peak memory": f"{results['peak_rss_bytes'] / 2**30:.2f} GiB",
          "dape_jax": results["dape_jax_version"],
      },
  )
