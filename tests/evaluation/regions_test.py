"""Regions are spread over documents and do not overlap; lengths are parsed."""

import collections
import itertools

import hypothesis
import hypothesis.strategies as st
import pytest

from dape_jax.errors import ConfigError
from dape_jax.evaluation import regions
from dape_jax.evaluation.regions import Region


@hypothesis.given(
    st.lists(st.integers(1, 200), min_size=1, max_size=8),
    st.integers(1, 40),
    st.integers(1, 30),
)
@hypothesis.settings(max_examples=150, deadline=None)
def test_regions_do_not_overlap_and_are_spread(documents, longest, count):
  hypothesis.assume(max(documents) > longest)
  chosen = regions.choose_regions(documents, longest, count)
  capacity = [(n - 1) // longest for n in documents]
  assert len(chosen) == min(count, sum(capacity))
  assert chosen == sorted(set(chosen))
  taken = collections.Counter(r.document for r in chosen)
  for before, after in itertools.pairwise(chosen):
    if before.document == after.document:
      assert before.start + longest <= after.start
  # A document gets fewer regions than another only if it has no more.
  if len(taken) == sum(c > 0 for c in capacity):
    most = max(taken.values())
    for document, number in taken.items():
      assert number >= min(most - 1, capacity[document])
  else:
    assert set(taken.values()) == {1}


def test_too_long_lengths_name_the_longest_document():
  with pytest.raises(ConfigError, match="use lengths up to 99"):
    regions.choose_regions([20, 100, 50], 100, 4)
  assert regions.choose_regions([20, 100, 50], 99, 4) == [Region(1, 0, 99)]


@pytest.mark.parametrize(
    "text, lengths",
    [
        ("128", [128]),
        ("1, 3,7", [1, 3, 7]),
        ("128,256,...,1024", [128, 256, 512, 1024]),
        ("100,...,800,900", [100, 200, 400, 800, 900]),
        ("64,...,128", [64, 128]),
    ],
)
def test_parse_lengths(text, lengths):
  assert regions.parse_lengths(text) == lengths


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "not a whole number"),
        ("128,,256", "not a whole number"),
        ("128,x", "not a whole number"),
        ("128.0", "not a whole number"),
        ("0,128", "not greater than 0"),
        ("-128", "not greater than 0"),
        ("256,128", "does not increase"),
        ("128,128", "does not increase"),
        ("...,128", "between two lengths"),
        ("128,...", "between two lengths"),
        ("128,...,...,512", "between two lengths"),
        ("128,...,500", "does not reach 500"),
    ],
)
def test_malformed_lengths_are_rejected(text, reason):
  with pytest.raises(ConfigError, match=reason) as error:
    regions.parse_lengths(text)
  assert "\n" not in str(error.value)
