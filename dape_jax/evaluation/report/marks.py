"""Which differences at a length are significant, and how tables mark them."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dape_jax.evaluation.report.subjects import Subject

ALPHA = 0.05

BEST, DIFFERS, BELOW_CROP, ABOVE_CROP = "^", "!", "<", ">"

# The first two are of several subjects.
MEANING = (
    f"{BEST} lowest perplexity at that length.",
    f"{DIFFERS} differs significantly from the lowest.",
    f"{BELOW_CROP} significantly below its own crop baseline: the longer context"
    " helps.",
    f"{ABOVE_CROP} significantly above its own crop baseline: the longer context"
    " does harm.",
    f"Significant: p < {ALPHA} of a two-sided paired sign-flip test over"
    " documents, after Holm's correction for all comparisons that can be marked"
    " at that length: of each other with the lowest, and of each with its crop"
    " baseline beyond its training length. The test is over documents: it says"
    " nothing about runs with other seeds.",
)


@dataclasses.dataclass(frozen=True)
class Marked:
  """A comparison that a table marks if it is significant.

  Attributes:
    comparison: its results, see `results_file`.
    p_adjusted: p value after Holm's correction.
  """

  comparison: dict[str, Any]
  p_adjusted: float

  @property
  def significant(self) -> bool:
    return self.p_adjusted < ALPHA


def holm(p_values: Sequence[float]) -> np.ndarray:
  """Returns p values corrected for their number.

  p'_(i) = max over j <= i of min(1, (n + 1 - j) p_(j)), where p_(j) is the j-th
  smallest of n (Holm 1979, Scandinavian Journal of Statistics 6, 65-70): the
  chance of one false rejection or more stays below the level, however the
  tests depend on each other.

  Args:
    p_values: [n], at least 0; NaN, no test, stays and does not count.

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


def best(subjects: Sequence[Subject], index: int) -> Subject | None:
  """Returns the one of lowest perplexity at a length, None if none is finite."""
  perplexity = lambda s: s.value("perplexity", index).mean
  finite = [s for s in subjects if math.isfinite(perplexity(s))]
  return min(finite, key=perplexity, default=None)


def marked(
    results: dict[str, Any], subjects: Sequence[Subject], index: int
) -> list[Marked]:
  """Returns the comparisons that are marked if they are significant.

  Of each other with the best, and of each with its crop baseline where that is
  another reading: beyond the training length.

  Args:
    results: see `results_file`.
    subjects: all that are compared.
    index: of the length.
  """
  length = results["lengths"][index]
  lowest = best(subjects, index)
  beyond = {s.name for s in subjects if length > s.train_length}
  shown = []
  for comparison in results["comparisons"]:
    if comparison["length"] != length:
      continue
    a, b = comparison["a"], comparison["b"]
    with_crop = b == "crop" and a in beyond
    with_best = b != "crop" and lowest is not None and lowest.name in (a, b)
    if with_crop or with_best:
      shown.append(comparison)
  p_values = [math.nan if c["p_value"] is None else c["p_value"] for c in shown]
  return [Marked(c, float(p)) for c, p in zip(shown, holm(p_values))]


def marks(
    results: dict[str, Any], subjects: Sequence[Subject], index: int
) -> dict[str, str]:
  """Returns each subject's marks at a length, as `MEANING` tells them.

  Args:
    results: see `results_file`.
    subjects: all that are compared.
    index: of the length.

  Returns:
    {name: marks}; a single subject is not called the best.
  """
  result = dict.fromkeys((s.name for s in subjects), "")
  lowest = best(subjects, index)
  if lowest is not None and len(subjects) > 1:
    result[lowest.name] += BEST
  significant = [
      entry.comparison
      for entry in marked(results, subjects, index)
      if entry.significant
  ]
  # First the mark from the comparison with the best.
  for comparison in sorted(significant, key=lambda c: c["b"] == "crop"):
    a, b = comparison["a"], comparison["b"]
    if b == "crop":
      below = comparison["difference"] < 0
      result[a] += BELOW_CROP if below else ABOVE_CROP
    else:
      result[b if a == lowest.name else a] += DIFFERS
  return result
