"""Significance: Holm's correction and the marks of tables."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from dape_jax.evaluation.report.significance import holm, marks
from dape_jax.evaluation.report.subjects import subjects


@pytest.mark.parametrize(
    "p_values, expected",
    [
        ([], []),
        ([0.03], [0.03]),
        # By hand: 4 x 0.005, 3 x 0.01, 2 x 0.03, and never below the one
        # before.
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.5, 0.6], [1.0, 1.0]),
        ([0.02, np.nan, 0.04], [0.04, np.nan, 0.04]),
    ],
)
def test_holm(p_values, expected):
  np.testing.assert_allclose(holm(p_values), expected, rtol=1e-12)


@hypothesis.given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_like_the_step_down_procedure(p_values):
  adjusted = holm(p_values)
  rejected = set()
  for index in np.argsort(p_values, kind="stable"):
    if p_values[index] * (len(p_values) - len(rejected)) >= 0.05:
      break
    rejected.add(int(index))
  assert {i for i, p in enumerate(adjusted) if p < 0.05} == rejected
  assert all(adjusted >= p_values) and all(adjusted <= 1)


def test_marks(make_results):
  results = make_results(
      {
          "a": ("rope", [[4.0, 9.0]], [4.0, 5.0]),
          "b": ("alibi", [[5.0, 4.0]], [5.0, 5.0]),
          "c": ("fire", [[6.0, 4.5]], [6.0, 5.0]),
      },
      p_values={
          # No crop baseline within the training length: two comparisons with
          # the best, 2 x 0.02 and 0.06.
          (128, "a", "b"): 0.02,
          (128, "a", "c"): 0.06,
          (128, "b", "c"): 0.0,  # Without the best.
          (128, "a", "crop"): 0.0,
          # Five comparisons: 5 x 0.001, 4 x 0.002, 3 x 0.01, 2 x 0.03.
          (256, "a", "b"): 0.001,
          (256, "b", "c"): 0.03,
          (256, "a", "crop"): 0.002,
          (256, "b", "crop"): 0.01,
      },
  )
  compared = subjects(results)
  assert marks(results, compared, 0) == {"a": "^", "b": "!", "c": ""}
  assert marks(results, compared, 1) == {"a": "!>", "b": "^<", "c": ""}


def test_nan_is_not_the_best(two_runs):
  two_runs["comparisons"][3]["p_value"] = float("nan")
  assert marks(two_runs, subjects(two_runs), 1) == {"one": "^>", "alibi": ""}


def test_single_run_is_not_marked_best(make_results):
  results = make_results({"a": ("rope", [[4.0, 9.0]], [4.0, 5.0])})
  assert marks(results, subjects(results), 0) == {"a": ""}
