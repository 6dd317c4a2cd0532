"""Results as text on a terminal."""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from dape_jax.evaluation.report import tables
from dape_jax.evaluation.report.marks import marks
from dape_jax.evaluation.report.subjects import (
    Subject,
    number,
    subjects,
    value_text,
)
from dape_jax.evaluation.report.tables import Cell, Table

_SIDE_BY_SIDE = 4
_WIDTH = 120


def _column(cells: Sequence[Cell], is_label: bool) -> list[str]:
  """Returns cells of one width, numbers and marks below each other."""
  width = max(len(cell.text) for cell in cells)
  marks_width = max(len(cell.marks) for cell in cells)
  adjust = str.ljust if is_label else str.rjust
  return [
      adjust(cell.text, width) + cell.marks.ljust(marks_width) for cell in cells
  ]


def aligned(
    header: Sequence[str], rows: Sequence[Sequence[Cell]], labels: int = 0
) -> list[list[str]]:
  """Returns columns of strings of one width each, the header first."""
  lines = [[Cell(name) for name in header], *rows]
  return [
      _column(column, number < labels)
      for number, column in enumerate(zip(*lines))
  ]


def _folded(table: Table) -> list[str]:
  """Returns lines of a table whose columns are folded to the line's width."""
  columns = aligned(table.header, table.rows, table.labels)
  labels, numbers = columns[: table.labels], columns[table.labels :]
  left = _WIDTH - sum(len(column[0]) + 2 for column in labels)
  fitting = max(1, left // (2 + max(len(column[0]) for column in numbers)))
  num_blocks = math.ceil(len(numbers) / fitting)
  lines = [table.title]
  for block in np.array_split(np.arange(len(numbers)), num_blocks):
    shown = labels + [numbers[index] for index in block]
    lines += ["  ".join(cells) for cells in zip(*shown)]
    lines.append("")
  return lines


def _side_by_side(
    results: dict[str, Any], compared: Sequence[Subject]
) -> list[str]:
  """Returns lines with lengths down and what is compared side by side."""
  header = "perplexity", "crop", "bits/byte", "crop"
  lengths = results["lengths"]
  marks_of = [marks(results, compared, i) for i in range(len(lengths))]
  blocks = []
  for subject in compared:
    rows = []
    for index, length in enumerate(lengths):
      star = "*" if length > subject.train_length else ""
      first = star + value_text(subject.value("perplexity", index))
      rows.append(
          (
              Cell(first, marks_of[index][subject.name]),
              Cell(value_text(subject.value("crop_perplexity", index))),
              Cell(number(subject.value("bits_per_byte", index).mean)),
              Cell(number(subject.value("crop_bits_per_byte", index).mean)),
          )
      )
    lines = ["  ".join(cells) for cells in zip(*aligned(header, rows))]
    width = max(len(subject.label), len(lines[0]))
    lines = [subject.label.ljust(width), *(line.rjust(width) for line in lines)]
    blocks.append(lines)
  names = ["", "length", *map(str, lengths)]
  names = [name.rjust(max(map(len, names))) for name in names]
  return [*(" | ".join(cells) for cells in zip(names, *blocks)), ""]


def table(results: dict[str, Any]) -> str:
  """Returns aligned text tables of perplexity, crop baseline and retrieval.

  Up to four runs (or groups of seeds) stand side by side, lengths down; of more,
  each has a line, and each length a column.

  Args:
    results: see `results_file`.

  Returns:
    Lines without a newline at the end; below them, what the marks mean, and
    which readings are not finite.
  """
  compared = subjects(results)
  lines = [tables.summary(results), ""]
  if len(compared) <= _SIDE_BY_SIDE:
    lines += _side_by_side(results, compared)
  else:
    for title, field, marked in (
        ("Perplexity", "perplexity", True),
        ("Perplexity of the crop baseline", "crop_perplexity", False),
    ):
      lines += _folded(
          tables.by_length(results, title, field, marked=marked, interval=False)
      )
  for scores in tables.retrieval_tables(results, "exact_match"):
    lines += _folded(scores)
  for sentence in tables.legend(results):
    lines += textwrap.wrap(sentence, _WIDTH, subsequent_indent="  ")
  for line in tables.not_finite(results):
    lines += textwrap.wrap(line, _WIDTH, subsequent_indent="  ")
  return "\n".join(line.rstrip() for line in lines)
