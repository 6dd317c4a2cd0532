"""Results as text for a terminal."""

import numpy as np
import pytest

from dape_jax.evaluation import report
from dape_jax.evaluation.report.subjects import numbers


@pytest.mark.parametrize(
    "values, expected",
    [
        ((4.5, 0.01), ["4.500", "0.010"]),
        ((39.314, 0.5), ["39.31", "0.50"]),
        ((100.04, 0.5), ["100.0", "0.5"]),
        ((34567.2, 12.3), ["34567", "12"]),
        ((1234567.0, 100.0), ["1.235e+06", "1.000e+02"]),
        ((float("inf"), float("nan")), ["inf", "nan"]),
        ((0.0, -3.21987), ["0.000", "-3.220"]),
    ],
)
def test_numbers_have_four_digits(values, expected):
  assert numbers(*values) == expected


def test_few_runs_are_side_by_side(two_runs):
  lines = report.table(two_runs).split("\n")
  assert lines[0] == (
      "test split, protocol last256: 512 tokens (511 bytes) of 3 regions in 2"
      " documents, the same at every length"
  )
  assert "one (rope), trained at 128" in lines[2]
  assert "| alibi, trained at 128" in lines[2]
  first, second = ([c.split() for c in x.split("|")] for x in lines[4:6])
  assert first[0] == ["128"]
  assert first[1] == ["4.500^", "4.500", "2.250", "2.250"]
  assert first[2] == ["5.000!", "5.000", "2.500", "2.500"]
  assert second[1] == ["*34567^>", "4.250", "17284", "2.125"]
  assert second[2] == ["*nan", "5.125", "nan", "2.562"]
  bars = {tuple(i for i, c in enumerate(x) if c == "|") for x in lines[2:6]}
  assert len(bars) == 1, "columns are not aligned"
  assert "Holm" in report.table(two_runs)
  assert lines[-1] == "NOT FINITE: alibi, of 512 scored tokens 7 at length 256"


def test_groups_have_mean_and_deviation(make_results):
  results = make_results(
      {
          "rope": ("rope", [[4.0, 100.0], [4.2, 120.0]], [4.0, 5.0]),
          "fire": ("fire", [[5.0, 4.0], [5.1, 4.1]], [5.0, 5.0]),
      }
  )
  lines = report.table(results).split("\n")
  assert "rope (2 runs), trained at 128" in lines[2]
  cells = [line.split("|")[1] for line in lines[4:6]]
  # |4.2 - 4.0| / sqrt(2) and |120 - 100| / sqrt(2)
  assert cells[0].split()[:3] == ["4.100", "+-", "0.141^"]
  assert cells[1].split()[:3] == ["*110.0", "+-", "14.1"]
  assert any(line.startswith("+- mean and sample") for line in lines)


def test_many_groups_have_a_row_each(make_results):
  lengths = [128 * 2**i for i in range(7)]
  values = 6 + np.arange(6)[:, None, None] + np.arange(3)[:, None] / 10
  values = np.broadcast_to(values, (6, 3, 7))
  names = ["rope", "alibi", "fire", "t5", "fox", "dape_kerple_log"]
  results = make_results(
      {name: (name, v.tolist(), [6.0] * 7) for name, v in zip(names, values)},
      lengths=lengths,
      p_values={(256, "rope", "fox"): 0.0},
  )
  lines = report.table(results).split("\n")
  assert max(map(len, lines)) <= 120
  assert lines[2] == "Perplexity, trained at 128, 3 runs each"
  assert lines[3].split() == ["128", "256", "512", "1024"]
  assert lines[11].split() == ["2048", "4096", "8192"]
  rows = {line.split()[0]: line.split()[1:] for line in lines[4:10]}
  assert list(rows) == names
  assert rows["rope"][:6] == ["6.100", "+-", "0.100^", "*6.100", "+-", "0.100^"]
  assert rows["fox"][3:6] == ["*10.10", "+-", "0.10!"]
  assert rows["t5"][3:6] == ["*9.100", "+-", "0.100"]
  crop = lines.index(
      "Perplexity of the crop baseline, trained at 128, 3 runs each"
  )
  assert lines[crop + 2].split()[:4] == ["rope", "6.000", "+-", "0.000"]
