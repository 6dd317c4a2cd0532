"""Tables as GitHub-flavoured Markdown and as HTML."""

import html
import re

from dape_jax.evaluation.report.marks import BEST
from dape_jax.evaluation.report.tables import Cell, Table


def _markdown(text: str) -> str:
  # An underscore inside a word, as names of encodings have, is no markup.
  text = re.sub(r"([\\`*|]|\b_|_\b)", r"\\\1", html.escape(text, quote=False))
  return text.replace("+-", "±")


def _markdown_cell(cell: Cell) -> str:
  text = _markdown(cell.text)
  text = f"**{text}**" if BEST in cell.marks else text
  return f"{text} {_markdown(cell.marks)}".rstrip()


def as_markdown(table: Table) -> str:
  """Returns a heading, the table with the best values bold, and its note."""
  rules = (
      ":--" if number < table.labels else "--:"
      for number in range(len(table.header))
  )
  lines = [
      map(_markdown, table.header),
      rules,
      *(map(_markdown_cell, row) for row in table.rows),
  ]
  body = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
  notes = "".join(f"- {_markdown(note)}\n" for note in table.notes)
  return f"### {_markdown(table.title)}\n\n{body}\n\n{notes}"


def _html(text: str) -> str:
  return html.escape(text).replace("+-", "&plusmn;")


def _html_cell(cell: Cell, is_label: bool, has_marks: bool) -> str:
  text = _html(cell.text)
  if BEST in cell.marks:
    text = f"<b>{text}</b>"
  if has_marks and not is_label:
    # Without marks too, so that numbers stand below each other.
    text += f" <span>{_html(cell.marks)}</span>"
  return f'<th scope="row">{text}</th>' if is_label else f"<td>{text}</td>"


def as_html(table: Table) -> str:
  """Returns a table that scrolls sideways if it is wide, and its note."""
  header = "".join(
      f'<th scope="col">{_html(name)}</th>' for name in table.header
  )
  has_marks = any(cell.marks for row in table.rows for cell in row)
  rows = "\n".join(
      "<tr>"
      + "".join(
          _html_cell(cell, number < table.labels, has_marks)
          for number, cell in enumerate(row)
      )
      + "</tr>"
      for row in table.rows
  )
  notes = "".join(f"<li>{_html(note)}</li>" for note in table.notes)
  notes = f"<ul>{notes}</ul>" if notes else ""
  return (
      f'<div class="wide" tabindex="0" role="region"'
      f' aria-label="{_html(table.title)}"><table>\n'
      f"<caption>{_html(table.title)}</caption>\n"
      f"<thead><tr>{header}</tr></thead>\n"
      f"<tbody>\n{rows}\n</tbody>\n</table></div>\n{notes}"
  )
