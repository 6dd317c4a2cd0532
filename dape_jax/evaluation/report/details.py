"""Tables that few read: all tests, retrieval by depth, what was read."""

from typing import Any

from dape_jax.evaluation.report import retrieval
from dape_jax.evaluation.report.marks import ALPHA, marked
from dape_jax.evaluation.report.subjects import number, subjects
from dape_jax.evaluation.report.tables import Cell, Table


def _cells(*values: Any) -> tuple[Cell, ...]:
  return tuple(Cell("" if value is None else str(value)) for value in values)


def comparisons_table(results: dict[str, Any]) -> Table:
  """Returns all tests, with the corrected p values of those that are marked."""
  compared = subjects(results)
  corrected = {
      (m.comparison["length"], m.comparison["a"], m.comparison["b"]): m
      for index in range(len(results["lengths"]))
      for m in marked(results, compared, index)
  }
  fields = "difference", "difference_low", "difference_high", "p_value"
  rows = []
  for entry in results["comparisons"]:
    mark = corrected.get((entry["length"], entry["a"], entry["b"]))
    values = [entry[field] for field in fields]
    values.append(None if mark is None else mark.p_adjusted)
    shown = (None if value is None else f"{value:.4g}" for value in values)
    rows.append(_cells(entry["a"], entry["b"], entry["length"], *shown))
  return Table(
      "All comparisons, nats per token",
      ("a", "b", "length", "a - b", "low", "high", "p", "p after Holm"),
      tuple(rows),
      2,
      (
          "low, high: 95% bootstrap interval over documents.",
          "p: paired sign-flip test over documents, two-sided.",
          "p after Holm: of the comparisons that the table of perplexity marks"
          f" where it is below {ALPHA}.",
      ),
  )


def depths_table(results: dict[str, Any], task: str) -> Table:
  """Returns exact match of a task by run, depth and length."""
  lengths, depths = retrieval.lengths(results), retrieval.depths(results, task)
  return Table(
      f"Exact match of {task} by depth",
      ("run", "depth", *map(str, lengths)),
      tuple(
          _cells(run["name"], f"{depth:.0%}", *map(number, scores))
          for run in results["runs"]
          for depth, scores in zip(
              depths, retrieval.by_depth(run, task, depths, lengths)
          )
      ),
      2,
      ("Depth 0% is the beginning of the text; nan: not measured.",),
  )


def runs_table(results: dict[str, Any]) -> Table:
  """Returns what the runs are, and how long reading them took."""
  fields = "name", "encoding", "train_length", "seed", "step", "checkpoint"
  return Table(
      "Runs",
      (
          "run",
          "encoding",
          "trained at",
          "seed",
          "step",
          "checkpoint",
          "seconds",
      ),
      tuple(
          _cells(
              *(run[field] for field in fields),
              f"{sum(row['seconds'] for row in run['rows']):.1f}",
          )
          for run in results["runs"]
      ),
      2,
      ("seconds: wall time of reading, without the crop baseline.",),
  )


def detail_tables(results: dict[str, Any]) -> list[Table]:
  """Returns the tables that a report folds away."""
  tables = [runs_table(results)]
  if results["comparisons"]:
    tables.append(comparisons_table(results))
  return tables + [
      depths_table(results, task)
      for task in retrieval.tasks(results)
      if retrieval.depths(results, task)
  ]
