"""Confidence intervals and significance tests over documents.

Tokens within a document are not independent; documents are assumed to be. So
the bootstrap resamples documents and the permutation test flips their signs.
"""

import numpy as np
import numpy.typing as npt

_CONFIDENCE = 0.95
_RESAMPLES = 10_000
_FLIPS = 10_000
# Samples per block, to bound memory with thousands of documents.
_BLOCK = 500
# With up to 16 documents all sign vectors are enumerated, else sampled.
_MAX_EXACT = 16
# Fixed, so that the same inputs give the same statistics.
_SEED = 0


def bootstrap_mean(
    sums: npt.ArrayLike, counts: npt.ArrayLike
) -> tuple[float, float] | None:
  """Returns a 95% interval of sum(sums) / sum(counts), over documents.

  Percentiles of the ratio over 10,000 resamples of the documents, drawn with
  replacement (Efron and Tibshirani 1993, chapter 13).

  Args:
    sums: [D] a sum per document, such as nats.
    counts: [D] tokens per document.

  Returns:
    (low, high); NaN if a sum is not finite; None with fewer than 2 documents.
  """
  sums_D, counts_D = np.asarray(sums, np.float64), np.asarray(counts)
  if len(sums_D) < 2:
    return None
  if not np.isfinite(sums_D).all():
    return np.nan, np.nan
  rng = np.random.default_rng(_SEED)
  means = []
  for _ in range(_RESAMPLES // _BLOCK):
    drawn_RxD = rng.integers(len(sums_D), size=(_BLOCK, len(sums_D)))
    means.append(sums_D[drawn_RxD].sum(1) / counts_D[drawn_RxD].sum(1))
  means_R = np.concatenate(means)
  tail = (1 - _CONFIDENCE) / 2
  low, high = np.quantile(means_R, [tail, 1 - tail])
  return float(low), float(high)


def sign_flip_p_value(differences: npt.ArrayLike) -> float:
  """Returns the p-value of a paired permutation test, two-sided.

  Under the null hypothesis the two scores of a document are exchangeable, so
  each difference has either sign with the same probability (Fisher 1935,
  The Design of Experiments, section 21). The statistic is |total difference|.
  With up to 16 documents, all 2^D sign vectors are enumerated. With more,
  10,000 are sampled and p = (1 + count) / (1 + 10,000), which counts the
  observed one (Phipson and Smyth 2010, arXiv 1603.05766).

  Args:
    differences: [D] nats of one model minus those of the other.

  Returns:
    The fraction of sign vectors whose statistic is at least the observed one;
    NaN if a difference is not finite.
  """
  differences_D = np.asarray(differences, np.float64)
  num = len(differences_D)
  if not np.isfinite(differences_D).all():
    return float("nan")
  exact = num <= _MAX_EXACT
  if exact:
    flips = [np.arange(2**num)[:, None] >> np.arange(num) & 1]
  else:
    rng = np.random.default_rng(_SEED)
    sizes = [(_BLOCK, num)] * (_FLIPS // _BLOCK)
    flips = (rng.integers(2, size=size, dtype=np.int8) for size in sizes)
  totals_F = np.abs(
      np.concatenate([(1.0 - 2.0 * block) @ differences_D for block in flips])
  )
  # Equal totals may differ by the rounding of their sums.
  rounding = 1e-12 * np.abs(differences_D).sum()
  count = int((totals_F >= abs(differences_D.sum()) - rounding).sum())
  return count / 2 ** num if exact else (1 + count) / (1 + _FLIPS)
