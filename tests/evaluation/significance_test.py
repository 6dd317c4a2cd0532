"""Tests have their nominal level, intervals roughly their nominal coverage."""

import itertools
import math

import numpy as np
import pytest

from dape_jax.evaluation import significance


def _brute_force(differences):
  observed = abs(math.fsum(differences))
  statistics = [
      abs(math.fsum(s * d for s, d in zip(signs, differences)))
      for signs in itertools.product((1, -1), repeat=len(differences))
  ]
  return sum(s >= observed - 1e-9 for s in statistics) / len(statistics)


@pytest.mark.parametrize("num", [1, 2, 5, 8])
def test_exact_test_is_brute_force(num):
  rng = np.random.default_rng(num)
  for _ in range(5):
    differences = rng.normal(0.5, 1, num)
    p_value = significance.sign_flip_p_value(differences)
    assert p_value == _brute_force(differences)
    # The order of the two models does not matter.
    assert significance.sign_flip_p_value(-differences) == p_value


@pytest.mark.parametrize(
    "differences, p_value",
    [
        # Only the observed signs and their opposites have as large a total.
        ([1.0] * 5, 2 / 2**5),
        ([1.0, 2.0, -3.0], 1),
        # Totals that are equal up to rounding count as equal.
        ([0.1, 0.2, -0.3], 1),
        ([0.0] * 20, 1),
        ([7.5], 1),
        # The smallest possible p-value, never 0.
        ([1.0] * 12, 2 / 2**12),
        ([1.0] * 40, 1 / 10_001),
    ],
)
def test_p_values_by_hand(differences, p_value):
  assert significance.sign_flip_p_value(differences) == p_value


@pytest.mark.parametrize("num", [10, 24])
def test_p_values_are_uniform_under_the_null(num):
  """Kolmogorov-Smirnov: 1.95 / sqrt(n) is exceeded once in a thousand times."""
  rng = np.random.default_rng(num)
  count = 250
  # Documents of very different sizes; differences are not normal.
  samples = rng.laplace(size=(count, num)) * rng.gamma(2, size=num)
  p_values = np.sort([significance.sign_flip_p_value(s) for s in samples])
  steps = np.arange(count + 1) / count
  distance = max(
      np.abs(p_values - steps[1:]).max(), np.abs(p_values - steps[:-1]).max()
  )
  assert distance < 1.95 / math.sqrt(count)
  assert p_values.min() > 0


@pytest.mark.parametrize("num", [12, 40])
def test_planted_difference_is_found(num):
  rng = np.random.default_rng(0)
  assert significance.sign_flip_p_value(rng.normal(1, 1, num)) < 0.01


def test_interval_has_roughly_nominal_coverage():
  rng = np.random.default_rng(0)
  covered, simulations, documents = 0, 150, 30
  for _ in range(simulations):
    tokens = rng.integers(50, 500, documents)
    # Mean loss of 2 nats per token, which varies between documents.
    nats = tokens * rng.normal(2, 0.5, documents)
    low, high = significance.bootstrap_mean(nats, tokens)
    covered += low <= 2 <= high
  assert 0.87 < covered / simulations < 0.99


def test_interval_weighs_by_tokens():
  # One long document and many short ones: the mean is over tokens.
  nats, tokens = [300.0] + [1.0] * 9, [100] + [1] * 9
  low, high = significance.bootstrap_mean(nats, tokens)
  assert low <= 309 / 109 <= high and high < 3
  assert significance.bootstrap_mean(nats, tokens) == (low, high)
  equal = significance.bootstrap_mean([6.0, 12.0], [3, 6])
  assert equal == (2, 2)


def test_too_few_or_broken_documents():
  assert significance.bootstrap_mean([3.0], [1]) is None
  for broken in (math.nan, math.inf):
    low, high = significance.bootstrap_mean([3.0, broken], [1, 1])
    assert math.isnan(low) and math.isnan(high)
    assert math.isnan(significance.sign_flip_p_value([1.0, broken]))
