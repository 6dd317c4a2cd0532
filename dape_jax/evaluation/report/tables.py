"""The tables of a report, before they become text, Markdown or HTML."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from dape_jax.evaluation.report import retrieval
from dape_jax.evaluation.report.marks import MEANING, marks
from dape_jax.evaluation.report.subjects import (
    Subject,
    differing,
    number,
    subjects,
    value_text,
)

BEYOND = "* beyond the training length."
CROP = (
    "Crop: the same tokens with the context cut to the training length, in windows"
    " that move by a quarter of it."
)


class Cell(NamedTuple):
  """A cell: its text, and marks of significance after it."""

  text: str
  marks: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
  """A table: its first `labels` columns are words, the others numbers."""

  title: str
  header: tuple[str, ...]
  rows: tuple[tuple[Cell, ...], ...]
  labels: int = 1
  notes: tuple[str, ...] = ()


def summary(results: dict[str, Any]) -> str:
  """Returns what was read, in a line."""
  row = results["runs"][0]["rows"][0]
  return (
      f"{results['split']} split, protocol {results['protocol']}:"
      f" {row['tokens']:,} tokens ({row['bytes']:,} bytes) of {row['regions']}"
      f" regions in {row['documents']} documents, the same at every length"
  )


def not_finite(results: dict[str, Any]) -> list[str]:
  """Returns a line for each run with tokens of no finite probability."""
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
  """Returns what the marks in tables of perplexity mean."""
  lines = [BEYOND, CROP]
  if any(len(group["runs"]) > 1 for group in results["groups"]):
    lines.append(
        "+- mean and sample standard deviation over runs that differ in the"
        " seed only."
    )
  if not any(run["retrieval"] for run in results["runs"]):
    lines.append(
        "No retrieval score: perplexity does not show that distant text is found"
        " again; --retrieval=passkey measures it."
    )
  if not results["comparisons"]:
    return lines
  if len(results["documents"]) < 6:
    lines.append(
        "Fewer than 6 documents cannot reach p < 0.05 in this test: no mark says"
        " nothing. --regions=N reads more."
    )
  return [*lines, *(MEANING if len(subjects(results)) > 1 else MEANING[2:])]


def _named(
    title: str,
    compared: Sequence[Subject],
    lengths: Sequence[int],
    rows: Sequence[Sequence[Cell]],
    *notes: str,
) -> Table:
  """Returns a table of a line for each subject, a column for each length."""
  differ, shared = differing(compared)
  facts = [[Cell(str(value)) for value in v] for v in differ.values()]
  names = [[Cell(subject.short) for subject in compared], *facts]
  return Table(
      ", ".join([title, *shared]),
      ("", *differ, *map(str, lengths)),
      tuple((*name, *row) for name, row in zip(zip(*names), rows)),
      len(names),
      notes,
  )


def by_length(
    results: dict[str, Any],
    title: str,
    field: str,
    *,
    compared: Sequence[Subject] | None = None,
    marked: bool = False,
    interval: bool = True,
) -> Table:
  """Returns a table with a line for each subject, a column for each length.

  Args:
    results: see `results_file`.
    title: of the table.
    field: see `Subject.value`.
    compared: whom it shows, by default what the report compares.
    marked: with marks of significance and of lengths beyond training.
    interval: with the bootstrap intervals of single runs.
  """
  compared = subjects(results) if compared is None else compared
  rows = [[] for _ in compared]
  for index, length in enumerate(results["lengths"]):
    significance = marks(results, compared, index) if marked else {}
    for row, subject in zip(rows, compared):
      star = "*" if marked and length > subject.train_length else ""
      text = value_text(subject.value(field, index), interval=interval)
      row.append(Cell(star + text, significance.get(subject.name, "")))
  return _named(title, compared, results["lengths"], rows)


def perplexity_tables(results: dict[str, Any]) -> list[Table]:
  """Returns perplexity and bits per byte, with their crop baselines."""
  tables = [
      by_length(results, "Perplexity", "perplexity", marked=True),
      by_length(results, "Perplexity of the crop baseline", "crop_perplexity"),
      by_length(results, "Bits per byte", "bits_per_byte"),
      by_length(
          results, "Bits per byte of the crop baseline", "crop_bits_per_byte"
      ),
  ]
  interval = (
      "[low, high] 95% bootstrap interval over documents, of single runs."
  )
  notes = interval, *legend(results)
  tables[0] = dataclasses.replace(tables[0], notes=notes)
  if any(subject.group for subject in subjects(results)):
    runs = [
        Subject(run["name"], run["encoding"], run["train_length"], (run,))
        for run in results["runs"]
    ]
    tables += [
        by_length(results, title, field, compared=runs)
        for title, field in (
            ("Perplexity of each run", "perplexity"),
            ("Perplexity of each run's crop baseline", "crop_perplexity"),
        )
    ]
  return tables


def retrieval_tables(results: dict[str, Any], field: str) -> list[Table]:
  """Returns a score of retrieval over length, a table for each task.

  Args:
    results: see `results_file`.
    field: "exact_match" or "token_accuracy".
  """
  compared, lengths = subjects(results), retrieval.lengths(results)
  return [
      _named(
          f"{field.replace('_', ' ').capitalize()} of {task}",
          compared,
          lengths,
          [
              [
                  Cell(value_text(value))
                  for value in retrieval.values(subject, task, lengths, field)
              ]
              for subject in compared
          ],
          "Share of 1, over all depths.",
      )
      for task in retrieval.tasks(results)
  ]


def positions_table(results: dict[str, Any]) -> Table | None:
  """Returns each run's loss by position, None for other protocols."""
  runs = [run for run in results["runs"] if run["positions"]]
  if not runs:
    return None
  names = ((run["name"], f"{run['name']} (crop)") for run in runs)
  rows = (
      (
          Cell(f"{entries[0]['begin']} to {entries[0]['end'] - 1}"),
          Cell(str(entries[0]["tokens"])),
          *(
              Cell(number(entry[field]))
              for entry in entries
              for field in ("loss", "crop_loss")
          ),
      )
      for entries in zip(*(run["positions"] for run in runs))
  )
  return Table(
      "Loss by position, nats per token",
      ("positions", "tokens", *(name for pair in names for name in pair)),
      tuple(rows),
  )


def main_tables(results: dict[str, Any]) -> list[Table]:
  """Returns the tables that a report shows."""
  positions = positions_table(results)
  return [
      *perplexity_tables(results),
      *retrieval_tables(results, "exact_match"),
      *retrieval_tables(results, "token_accuracy"),
      *([] if positions is None else [positions]),
  ]
