"""Tables of a report, independent of text, Markdown or HTML."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from dape_jax.evaluation.report.significance import (
    ALPHA,
    BEST,
    MEANING,
    adjusted,
    marks,
)
from dape_jax.evaluation.report.subjects import (
    Subject,
    Value,
    differing,
    each_run,
    number,
    retrieval_by_depth,
    retrieval_values,
    subjects,
)


class Cell(NamedTuple):
  """A cell: its text, followed by its significance marks."""

  text: str
  marks: str = ""

  @property
  def is_best(self) -> bool:
    return BEST in self.marks


@dataclasses.dataclass(frozen=True)
class Table:
  """A table; the first `labels` columns are text, the others numbers."""

  title: str
  header: tuple[str, ...]
  rows: tuple[tuple[Cell, ...], ...]
  labels: int = 1
  notes: tuple[str, ...] = ()

  @property
  def has_marks(self) -> bool:
    return any(cell.marks for row in self.rows for cell in row)


def _cells(*values: Any) -> tuple[Cell, ...]:
  return tuple(Cell("" if value is None else str(value)) for value in values)


def summary(results: dict[str, Any]) -> str:
  """Returns one line about the evaluated tokens."""
  row = results["runs"][0]["rows"][0]
  return (
      f"{results['split']} split, protocol {results['protocol']}:"
      f" {row['tokens']:,} tokens ({row['bytes']:,} bytes) of {row['regions']}"
      f" regions in {row['documents']} documents, the same at every length"
  )


def not_finite(results: dict[str, Any]) -> list[str]:
  """Returns a warning for each run with tokens whose nats are not finite."""
  lines = []
  for run in results["runs"]:
    for prefix, name in ("", run["name"]), ("crop_", f"crop of {run['name']}"):
      counts = [
          f"{row[prefix + 'non_finite_tokens']} at length {row['length']}"
          for row in run["rows"]
          if row[f"{prefix}non_finite_tokens"]
      ]
      if counts:
        tokens = run["rows"][0]["tokens"]
        lines.append(
            f"NOT FINITE: {name}, of {tokens} scored tokens {', '.join(counts)}"
        )
  return lines


def legend(results: dict[str, Any]) -> list[str]:
  """Returns the notes that explain the marks in tables of perplexity."""
  lines = [
      "* beyond the training length.",
      "Crop: the same tokens with the context cut to the training length, in"
      " windows that move by a quarter of it.",
  ]
  if any(len(group["runs"]) > 1 for group in results["groups"]):
    lines.append(
        "+- mean and sample standard deviation over runs that differ only in"
        " the seed."
    )
  if not any(run["retrieval"] for run in results["runs"]):
    lines.append(
        "No retrieval score: perplexity does not show whether the model finds"
        " distant text; --retrieval=passkey measures that."
    )
  if not results["comparisons"]:
    return lines
  if len(results["documents"]) < 6:
    lines.append(
        "Fewer than 6 documents cannot reach p < 0.05 in this test: a missing"
        " mark is inconclusive. Evaluate more with --regions=N."
    )
  return [*lines, *(MEANING if len(subjects(results)) > 1 else MEANING[2:])]


def _table(
    title: str,
    compared: Sequence[Subject],
    lengths: Sequence[int],
    rows: Sequence[Sequence[Cell]],
    *notes: str,
) -> Table:
  """Returns a table with a row per subject and a column per length."""
  differ, shared = differing(compared)
  names = ([subject.short for subject in compared], *differ.values())
  return Table(
      ", ".join([title, *shared]),
      ("", *differ, *map(str, lengths)),
      tuple((*_cells(*name), *row) for name, row in zip(zip(*names), rows)),
      len(names),
      notes,
  )


def by_length(
    results: dict[str, Any],
    title: str,
    field: str,
    *notes: str,
    compared: Sequence[Subject] | None = None,
    marked: bool = False,
    interval: bool = True,
) -> Table:
  """Returns a table with a row per subject and a column per length.

  Args:
    results: see `results_file`.
    title: title of the table.
    field: see `Subject.value`.
    *notes: notes below the table.
    compared: the subjects to show; by default, those the report compares.
    marked: whether to mark significance and lengths beyond training.
    interval: whether to show the bootstrap intervals of single runs.
  """
  compared = subjects(results) if compared is None else compared
  rows = [[] for _ in compared]
  for index, length in enumerate(results["lengths"]):
    significance = marks(results, compared, index) if marked else {}
    for row, subject in zip(rows, compared):
      star = "*" if marked and length > subject.train_length else ""
      text = subject.value(field, index).text(interval=interval)
      row.append(Cell(star + text, significance.get(subject.name, "")))
  return _table(title, compared, results["lengths"], rows, *notes)


def _perplexity_tables(results: dict[str, Any]) -> list[Table]:
  """Returns perplexity and bits per byte, with their crop baselines."""
  notes = (
      "[low, high] 95% bootstrap interval over documents, for single runs.",
      *legend(results),
  )
  tables = [by_length(results, "Perplexity", "perplexity", *notes, marked=True)]
  for title, field in (
      ("Perplexity of the crop baseline", "crop_perplexity"),
      ("Bits per byte", "bits_per_byte"),
      ("Bits per byte of the crop baseline", "crop_bits_per_byte"),
  ):
    tables.append(by_length(results, title, field))
  if any(len(subject.runs) > 1 for subject in subjects(results)):
    for title, field in (
        ("Perplexity of each run", "perplexity"),
        ("Perplexity of each run's crop baseline", "crop_perplexity"),
    ):
      tables.append(
          by_length(results, title, field, compared=each_run(results))
      )
  return tables


def retrieval_tables(results: dict[str, Any], field: str) -> list[Table]:
  """Returns retrieval scores over length, one table per task.

  Args:
    results: see `results_file`.
    field: "exact_match" or "token_accuracy".
  """
  compared, lengths = subjects(results), retrieval_values(results, "length")
  tables = []
  for task in retrieval_values(results, "task"):
    rows = [
        [
            Cell(Value.of(scores).text())
            for scores in subject.retrieval(task, lengths, field).T
        ]
        for subject in compared
    ]
    title = f"{field.replace('_', ' ').capitalize()} of {task}"
    note = "Fraction from 0 to 1, over all depths."
    tables.append(_table(title, compared, lengths, rows, note))
  return tables


def _positions_tables(results: dict[str, Any]) -> list[Table]:
  """Returns each run's loss by position, [] for other protocols."""
  runs = [run for run in results["runs"] if run["positions"]]
  if not runs:
    return []
  header = ["positions", "tokens"]
  for run in runs:
    header += [run["name"], f"{run['name']} (crop)"]
  rows = []
  for entries in zip(*(run["positions"] for run in runs)):
    first = entries[0]
    losses = [number(e[f]) for e in entries for f in ("loss", "crop_loss")]
    positions = f"{first['begin']} to {first['end'] - 1}"
    rows.append(_cells(positions, first["tokens"], *losses))
  title = "Loss by position, nats per token"
  return [Table(title, tuple(header), tuple(rows))]


def main_tables(results: dict[str, Any]) -> list[Table]:
  """Returns the tables that a report shows."""
  return [
      *_perplexity_tables(results),
      *retrieval_tables(results, "exact_match"),
      *retrieval_tables(results, "token_accuracy"),
      *_positions_tables(results),
  ]


def _runs_table(results: dict[str, Any]) -> Table:
  """Returns the runs and how long their evaluation took."""
  fields = "name", "encoding", "train_length", "seed", "step", "checkpoint"
  rows = []
  for run in results["runs"]:
    seconds = sum(row["seconds"] for row in run["rows"])
    rows.append(_cells(*(run[field] for field in fields), f"{seconds:.1f}"))
  header = "run", "encoding", "trained at", "seed", "step"
  return Table(
      "Runs",
      (*header, "checkpoint", "seconds"),
      tuple(rows),
      2,
      ("seconds: wall time of the evaluation, without the crop baseline.",),
  )


def _comparisons_table(results: dict[str, Any]) -> Table:
  """Returns all tests, with adjusted p values where they can be marked."""
  p_adjusted = {
      (comparison["length"], comparison["a"], comparison["b"]): p
      for index in range(len(results["lengths"]))
      for comparison, p in adjusted(results, subjects(results), index)
  }
  fields = "difference", "difference_low", "difference_high", "p_value"
  rows = []
  for entry in results["comparisons"]:
    key = entry["length"], entry["a"], entry["b"]
    values = [*(entry[field] for field in fields), p_adjusted.get(key)]
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
          "p after Holm: for the comparisons that the table of perplexity marks"
          f" if it is below {ALPHA}.",
      ),
  )


def _depths_table(results: dict[str, Any], task: str) -> Table:
  """Returns a task's exact match by run, depth and length."""
  lengths = retrieval_values(results, "length")
  depths = retrieval_values(results, "depth", task)
  rows = []
  for run in results["runs"]:
    scores = retrieval_by_depth(run, task, depths, lengths)
    for depth, row in zip(depths, scores):
      rows.append(_cells(run["name"], f"{depth:.0%}", *map(number, row)))
  return Table(
      f"Exact match of {task} by depth",
      ("run", "depth", *map(str, lengths)),
      tuple(rows),
      2,
      ("Depth 0% is the beginning of the text; nan: not measured.",),
  )


def detail_tables(results: dict[str, Any]) -> list[Table]:
  """Returns the tables in the collapsed sections of the HTML report."""
  tables = [_runs_table(results)]
  if results["comparisons"]:
    tables.append(_comparisons_table(results))
  return tables + [
      _depths_table(results, task)
      for task in retrieval_values(results, "task")
      if retrieval_values(results, "depth", task)
  ]
