"""The folder of a report: Markdown, figures and the HTML page."""

import base64
import html.parser
import math
import re

import pytest
from matplotlib import image

from dape_jax.evaluation import report
from dape_jax.evaluation.report import tables
from dape_jax.evaluation.report import text as report_text

_VOID = {"meta", "img", "br", "hr", "link", "input"}


class _Page(html.parser.HTMLParser):
  """Parses a page; fails on unbalanced tags."""

  def __init__(self, text):
    super().__init__()
    self.open, self.images, self.cells, self.tags = [], [], [], []
    self.text = ""
    self.feed(text)
    self.close()
    assert not self.open

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    names = [name for name, _ in attrs]
    assert len(set(names)) == len(names), f"<{tag}> repeats an attribute"
    if tag == "img":
      self.images.append(dict(attrs))
    if tag in ("td", "th"):
      self.cells.append("")
    if tag not in _VOID:
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    self.text += data
    if {"td", "th"} & set(self.open):
      self.cells[-1] += data


def _retrieval(exact_match):
  return [
      {
          "task": task,
          "length": length,
          "depth": depth,
          "samples": 8,
          "exact_match": exact_match / (1 + (length > 128)),
          "token_accuracy": 0.875,
      }
      for task, depths in (("passkey", (0.0, 0.5, 1.0)), ("recall", (None,)))
      for length in (128, 256)
      for depth in depths
  ]


def _positions(loss):
  return [
      {
          "begin": begin,
          "end": end,
          "tokens": 3 * (end - begin),
          "nats": 3 * (end - begin) * loss,
          "loss": loss / (1 + begin),
          "crop_nats": 1.0,
          "crop_loss": loss * 2,
      }
      for begin, end in ((0, 1), (1, 2), (2, 4), (4, 256))
  ]


@pytest.fixture(scope="module")
def full(make_results, tmp_path_factory):
  """Returns results with every section of a report, and the report's paths."""
  results = make_results(
      {
          "<a>$x_1$": ("rope", [[4.5, 34567.0]], [4.5, 4.25]),
          "_b|": ("alibi", [[5.0, math.inf]], [5.0, 5.125]),
      },
      p_values={(128, "<a>$x_1$", "_b|"): 0.01234},
  )
  for run, exact_match, loss in zip(results["runs"], (0.8, 0.625), (1.5, 2.5)):
    run["retrieval"] = _retrieval(exact_match)
    run["positions"] = _positions(loss)
  results["protocol"] = "positionwise"
  folder = tmp_path_factory.mktemp("report")
  return results, report.write(results, folder)


def test_written_files(full):
  results, paths = full
  assert [path.name for path in paths] == [
      "results.json",
      "table.md",
      "perplexity.png",
      "positions.png",
      "retrieval_passkey.png",
      "needle_passkey.png",
      "retrieval_recall.png",
      "report.html",
  ]
  assert repr(report.read_json(paths[0])) == repr(results)
  for path in paths[2:-1]:
    height, width, _ = image.imread(path).shape
    assert 500 < height < 2000 and 800 < width < 1600


def test_page_is_self_contained(full):
  _, paths = full
  text = paths[-1].read_text()
  page = _Page(text)
  assert text.startswith("<!DOCTYPE html>") and 'lang="en"' in text
  assert "prefers-color-scheme: dark" in text and "width=device-width" in text
  assert not {"script", "link", "iframe"} & set(page.tags)
  assert not re.search(r"https?:|url\(|@import", text)
  pictures = [path.read_bytes() for path in paths if path.suffix == ".png"]
  prefix = "data:image/png;base64,"
  assert [i["src"].removeprefix(prefix) for i in page.images] == [
      base64.b64encode(data).decode() for data in pictures
  ]
  assert all(len(picture["alt"]) > 20 for picture in page.images)


def test_page_has_the_numbers(full):
  results, paths = full
  page = _Page(paths[-1].read_text())
  cells = [cell.strip() for cell in page.cells]
  for expected in (
      "<a>$x_1$ (rope)",
      "4.500 [4.050, 4.950] ^",
      "5.000 [4.500, 5.500] !",
      "*34567 [31110, 38024] ^",
      "*inf [inf, inf]",
      "4.250 [3.825, 4.675]",  # Crop.
      "17284",  # Bits per byte.
      "2.562",
      "0.01234",  # p with four digits.
      "0.800",  # Exact match.
      "0.312",
      "0.875",  # Token accuracy.
      "4 to 255",
      "756",
      "0.833",  # Loss by position.
      "5.000",  # Its crop.
      "50%",
      "/runs/_b|",
  ):
    assert expected in cells, expected
  assert "NOT FINITE: _b|, of 512 scored tokens 7 at length 256" in page.text
  assert results["command"] in page.text and "Holm" in page.text


def test_markdown_tables(full):
  _, paths = full
  text = paths[1].read_text()
  # Bars in names are escaped: all rows of a table have the same width.
  for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
    counts = {
        len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()
    }
    assert len(counts) == 1
  assert r"| &lt;a&gt;$x_1$ (rope) | **4.500 [4.050, 4.950]** ^ |" in text
  assert r"\*34567 [31110, 38024]" in text
  assert (
      r"| \_b\| (alibi) | 5.000 [4.500, 5.500] ! | \*inf [inf, inf] |" in text
  )
  assert "### Bits per byte of the crop baseline, trained at 128" in text


def test_seeds_have_their_own_tables(make_results):
  results = make_results(
      {
          "rope": ("rope", [[4.0, 9.0], [4.2, 9.5]], [4.0, 5.0]),
          "fire": ("fire", [[5.0, 4.0]], [5.0, 5.0]),
      }
  )
  text = "\n".join(map(report_text.as_markdown, tables.main_tables(results)))
  assert "| rope | 2 | **4.100 ± 0.141** ^ | \\*9.250 ± 0.354 |" in text
  assert "| fire | 1 | 5.000 [4.500, 5.500] |" in text
  assert "### Perplexity of each run, trained at 128" in text
  assert "| rope_s1 | 4.200 [3.780, 4.620] | 9.500 [8.550, 10.450] |" in text


def test_existing_report_is_replaced_with_a_message(
    make_results, tmp_path, capsys
):
  results = make_results({"a": ("rope", [[4.0, 9.0]], [4.0, 5.0])})
  for name in "retrieval_passkey.png", "of_mine.png":
    (tmp_path / name).touch()
  report.write(results, tmp_path)
  assert (tmp_path / "retrieval_passkey.png").exists()  # There was no report.
  assert not capsys.readouterr().err
  report.write(results, tmp_path)
  assert capsys.readouterr().err == (
      f"{tmp_path}: replacing the existing report.\n"
  )
  assert not (tmp_path / "retrieval_passkey.png").exists()
  assert (tmp_path / "of_mine.png").exists()


def test_names_with_invalid_unicode(make_results, tmp_path):
  results = make_results({"é": ("rope", [[4.0, 9.0]], [4.0, 5.0])})
  results["source"] = results["command"] = "\udcff.txt"
  paths = report.write(results, tmp_path)
  for path in paths[1], paths[-1]:
    assert "é" in path.read_text("utf-8")
  assert "?.txt" in paths[-1].read_text("utf-8")
