"""Tables as GitHub-flavored Markdown and as text for a terminal."""

import html
import math
import re
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from dape_jax.evaluation.report import tables
from dape_jax.evaluation.report.significance import marks
from dape_jax.evaluation.report.subjects import Subject, number, subjects
from dape_jax.evaluation.report.tables import Cell, Table

_MAX_SIDE_BY_SIDE = 4
_WIDTH = 120


def _markdown(text: str) -> str:
  # An underscore inside a word, as in names of encodings, is not markup.
  text = re.sub(r"([\\`*|]|\b_|_\b)", r"\\\1", html.escape(text, quote=False))
  return text.replace("+-", "±")


def _markdown_cell(cell: Cell) -> str:
  text = _markdown(cell.text)
  text = f"**{text}**" if cell.is_best else text
  return f"{text} {_markdown(cell.marks)}".rstrip()


def as_markdown(table: Table) -> str:
  """Returns a heading, the table with the best values bold, and its notes."""
  numbers = len(table.header) - table.labels
  lines = [
      map(_markdown, table.header),
      [":--"] * table.labels + ["--:"] * numbers,
      *(map(_markdown_cell, row) for row in table.rows),
  ]
  body = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
  notes = "".join(f"- {_markdown(note)}\n" for note in table.notes)
  return f"### {_markdown(table.title)}\n\n{body}\n\n{notes}"


def _aligned(
    header: Sequence[str], rows: Sequence[Sequence[Cell]], labels: int = 0
) -> list[list[str]]:
  """Returns the columns, header first, each padded to one width."""
  columns = []
  for index, cells in enumerate(zip(map(Cell, header), *rows)):
    width = max(len(cell.text) for cell in cells)
    marks_width = max(len(cell.marks) for cell in cells)
    adjust = str.ljust if index < labels else str.rjust
    columns.append(
        [adjust(c.text, width) + c.marks.ljust(marks_width) for c in cells]
    )
  return columns


def _folded(table: Table) -> list[str]:
  """Returns the lines of a table, in blocks of columns that fit the width."""
  columns = _aligned(table.header, table.rows, table.labels)
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
  """Returns lines with one row per length and the subjects side by side."""
  header = "perplexity", "crop", "bits/byte", "crop"
  fields = (
      "perplexity",
      "crop_perplexity",
      "bits_per_byte",
      "crop_bits_per_byte",
  )
  lengths = results["lengths"]
  names = ["", "length", *map(str, lengths)]
  blocks = [[name.rjust(max(map(len, names))) for name in names]]
  marks_of = [marks(results, compared, i) for i in range(len(lengths))]
  for subject in compared:
    rows = []
    for index, length in enumerate(lengths):
      perplexity, crop, bits, crop_bits = (
          subject.value(field, index) for field in fields
      )
      star = "*" if length > subject.train_length else ""
      rows.append(
          (
              Cell(star + perplexity.text(), marks_of[index][subject.name]),
              Cell(crop.text()),
              Cell(number(bits.mean)),
              Cell(number(crop_bits.mean)),
          )
      )
    lines = ["  ".join(cells) for cells in zip(*_aligned(header, rows))]
    width = max(len(subject.label), len(lines[0]))
    blocks.append(
        [subject.label.ljust(width), *(line.rjust(width) for line in lines)]
    )
  return [*map(" | ".join, zip(*blocks)), ""]


def table(results: dict[str, Any]) -> str:
  """Returns aligned text tables of perplexity, crop baseline and retrieval.

  Up to four runs (or groups of seeds) are shown side by side, one row per
  length. With more, there is one row per run and one column per length.

  Args:
    results: see `results_file`.

  Returns:
    Lines without a final newline. The last ones explain the marks and list
    results that are not finite.
  """
  compared = subjects(results)
  lines = [tables.summary(results), ""]
  if len(compared) <= _MAX_SIDE_BY_SIDE:
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
  for note in tables.legend(results) + tables.not_finite(results):
    lines += textwrap.wrap(note, _WIDTH, subsequent_indent="  ")
  return "\n".join(line.rstrip() for line in lines)
