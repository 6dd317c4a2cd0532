"""Figures show the measured values."""

import itertools
import math

import numpy as np
import pytest
from matplotlib import image

from dape_jax.evaluation import report
from dape_jax.evaluation.report import figures, perplexity_figures


@pytest.fixture
def drawn(monkeypatch):
  """Returns the list of drawn figures."""
  made = []

  def new_figure(*size):
    made.append(report.new_figure(*size))
    return made[-1]

  monkeypatch.setattr(figures, "new_figure", new_figure)
  return made


def _labels(figure):
  (legend,) = figure.legends
  return [text.get_text() for text in legend.get_texts()]


def test_line_styles_differ():
  styles = [str(figures.line_style(number)) for number in range(77)]
  assert len(set(styles)) == 77


def test_accuracy_figure(drawn, tmp_path):
  lengths = list(range(1, 101))
  rows = [
      {
          "label": f"_encoding {number}",
          "lengths": lengths,
          "accuracies": [np.linspace(1, 0.1 * number, 100)] * 2,
      }
      for number in range(3)
  ]
  rows[0]["accuracies"][1] = np.linspace(1, 0.5, 100)
  path = tmp_path / "accuracy.png"
  report.accuracy_figure(
      rows, path, title="copy $", train_length=16, chance=0.25
  )
  (figure,) = drawn
  (axes,) = figure.axes
  assert _labels(figure) == [
      "_encoding 0",
      "_encoding 2",
      "_encoding 1",
      "training length, 16",
      "chance, 0.25",
  ]
  assert axes.lines[0].get_ydata()[-1] == pytest.approx(0.25)
  band = axes.collections[0].get_paths()[0].vertices
  assert band[:, 1].min() == pytest.approx(0.0)
  assert axes.lines[3].get_xdata()[0] == 16
  assert axes.get_xscale() == "linear", "a tick for each of 100 lengths"
  height, width, _ = image.imread(path).shape
  assert (width, height) == (1350, 750)


def test_perplexity_figure_of_many_diverging_runs(
    make_results, drawn, tmp_path
):
  lengths = [128, 256, 131072]
  results = make_results(
      {
          f"run{number}": (
              "rope",
              [[6.0, 6.0, 6.0 * 10**number if number < 5 else math.inf]],
              [6.0, 6.0, 5.5],
          )
          for number in range(6)
      },
      lengths=lengths,
  )
  path = tmp_path / "perplexity.png"
  perplexity_figures.perplexity_figure(results, path)
  (figure,) = drawn
  everything, low, crop = figure.axes
  assert low.get_ylim()[1] < 12
  assert everything.get_ylim()[1] > 6e4
  labels = [label.replace("\n", " ") for label in _labels(figure)]
  assert labels[:3] == [
      "run5 (rope) (not finite at 131072)",
      "run4 (rope)",
      "run3 (rope)",
  ]
  last = [line.get_ydata()[-1] for line in everything.lines[:6]]
  np.testing.assert_array_equal(last, [6, 60, 600, 6e3, 6e4, math.nan])
  assert crop.lines[0].get_ydata()[-1] == 5.5
  ticks = [text.get_text() for text in crop.get_xticklabels()]
  assert ticks == ["128", "256", "131072"]
  figure.canvas.draw()
  boxes = [t.get_window_extent() for t in crop.get_xticklabels()]
  assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))


def test_perplexity_figure_without_finite_values(make_results, tmp_path):
  results = make_results({"a": ("rope", [[math.inf]], [math.nan])}, [128])
  path = tmp_path / "perplexity.png"
  perplexity_figures.perplexity_figure(results, path)
  assert path.stat().st_size > 0


def test_heat_map_figure(drawn, tmp_path):
  report.heat_map_figure(
      {"a": [[0.0, 1.0], [math.nan, 0.5]]}
      | dict.fromkeys("bcd", np.zeros((2, 2))),
      tmp_path / "map.png",
      title="needle",
      columns=[128, 256],
      rows=["0%", "100%"],
      xlabel="length",
      ylabel="depth",
      value="exact match",
  )
  (figure,) = drawn
  first = figure.axes[0]
  assert [t.get_text() for t in first.texts] == ["0.00", "1.00", "", "0.50"]
  assert [t.get_text() for t in first.get_yticklabels()] == ["0%", "100%"]
  assert len(figure.axes) == 5  # With the color bar.
