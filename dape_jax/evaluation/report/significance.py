"""Significance of differences at a length, and its marks in tables."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dape_jax.evaluation.report.subjects import Subject

ALPHA = 0.05

BEST, DIFFERS, BELOW_CROP, ABOVE_CROP = "^", "!", "<", ">"

# The first two apply only when several subjects are compared.
MEANING = (
    f"{BEST} lowest perplexity at that length.",
    f"{DIFFERS} differs significantly from the lowest.",
    f"{BELOW_CROP} significantly below its own crop baseline: the longer"
    " context helps.",
    f"{ABOVE_CROP} significantly above its own crop baseline: the longer"
    " context hurts.",
    f"Significant: p < {ALPHA} in a two-sided paired sign-flip test over"
    " documents, after Holm's correction for all comparisons that can be marked"
    " at that length: each row against the lowest and, beyond its training"
    " length, against its crop baseline. The test is over documents and does"
    " not account for variation between seeds.",
)


def holm(p_values: Sequence[float]) -> np.ndarray:
  """Returns p values adjusted for multiple tests by Holm's method.

  p'_(i) = max over j <= i of min(1, (n + 1 - j) p_(j)), where p_(j) is the j-th
  smallest of n (Holm 1979, Scandinavian Journal of Statistics 6, 65-70). The
  probability of one or more false rejections stays below the level under any
  dependence between the tests.

  Args:
    p_values: [n], at least 0; NaN marks a missing test, which is not counted
      and stays NaN.

  Returns:
    float64 [n].
  """
  p_values = np.array(p_values, np.float64)
  tested = p_values[~np.isnan(p_values)]
  order = np.argsort(tested)
  scaled = tested[order] * np.arange(len(tested), 0, -1)
  tested[order] = np.minimum(1, np.maximum.accumulate(scaled))
  p_values[~np.isnan(p_values)] = tested
  return p_values


def _best(subjects: Sequence[Subject], index: int) -> Subject | None:
  """Returns the subject with the lowest finite perplexity, or None."""
  perplexity = lambda s: s.value("perplexity", index).mean
  finite = [s for s in subjects if math.isfinite(perplexity(s))]
  return min(finite, key=perplexity, default=None)


def adjusted(
    results: dict[str, Any], subjects: Sequence[Subject], index: int
) -> list[tuple[dict[str, Any], float]]:
  """Returns the comparisons a table can mark, with their adjusted p values.

  These are each subject against the best one and, beyond the training length,
  where the two differ, each subject against its crop baseline.

  Args:
    results: see `results_file`.
    subjects: all subjects compared.
    index: index of the length.
  """
  length = results["lengths"][index]
  lowest = _best(subjects, index)
  beyond = {s.name for s in subjects if length > s.train_length}

  def can_be_marked(a, b):
    if b == "crop":
      return a in beyond
    return lowest is not None and lowest.name in (a, b)

  shown = [
      c
      for c in results["comparisons"]
      if c["length"] == length and can_be_marked(c["a"], c["b"])
  ]
  p_values = [math.nan if c["p_value"] is None else c["p_value"] for c in shown]
  return [(c, float(p)) for c, p in zip(shown, holm(p_values))]


def marks(
    results: dict[str, Any], subjects: Sequence[Subject], index: int
) -> dict[str, str]:
  """Returns each subject's marks at a length; `MEANING` explains them.

  Args:
    results: see `results_file`.
    subjects: all subjects compared.
    index: index of the length.
  Returns:
    {name: marks}; a single subject is not marked as the best.
  """
  result = dict.fromkeys((s.name for s in subjects), "")
  lowest = _best(subjects, index)
  if lowest is not None and len(subjects) > 1:
    result[lowest.name] += BEST
  significant = [c for c, p in adjusted(results, subjects, index) if p < ALPHA]
  # The mark for differing from the best comes first.
  for comparison in sorted(significant, key=lambda c: c["b"] == "crop"):
    a, b = comparison["a"], comparison["b"]
    if b == "crop":
      below = comparison["difference"] < 0
      result[a] += BELOW_CROP if below else ABOVE_CROP
    else:
      result[b if a == lowest.name else a] += DIFFERS
  return result
