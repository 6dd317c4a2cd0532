"""Every protocol scores the same tokens at every length, each exactly once."""

import collections
import itertools

import hypothesis
import hypothesis.strategies as st
import pytest

from dape_jax.errors import ConfigError
from dape_jax.evaluation import protocols
from dape_jax.evaluation.protocols import Region, Segment


def _scored(segments):
  """Returns {(document, token): context} and checks that none comes twice."""
  contexts = {}
  for s in segments:
    assert 0 < s.scored <= s.length and s.start >= 0
    for prediction in range(s.length - s.scored, s.length):
      key = (s.document, s.start + prediction + 1)
      assert key not in contexts, f"{key} is scored twice"
      contexts[key] = prediction + 1
  return contexts


@hypothesis.given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=6),
    st.integers(1, 900),
    st.integers(1, 900),
    st.integers(1, 12),
    st.sampled_from(sorted(protocols.PROTOCOLS)),
)
@hypothesis.settings(max_examples=150, deadline=None)
def test_lengths_score_same_tokens_once(
    documents, longest, shorter, max_regions, name
):
  hypothesis.assume(max(documents) > longest)
  length = min(shorter, longest)
  regions = protocols.choose_regions(documents, longest, max_regions)
  segments_of = protocols.protocol(name)
  long = [s for r in regions for s in segments_of(r, longest)]
  short = [s for r in regions for s in segments_of(r, length)]
  at_longest, at_length = _scored(long), _scored(short)
  assert at_longest.keys() == at_length.keys()
  per_region = min(256, longest) if name == "last256" else longest
  assert len(at_longest) == per_region * len(regions)
  for s in long + short:
    assert s.start + s.length < documents[s.document]
  assert all(s.length <= length for s in short)


@hypothesis.given(
    st.integers(0, 50), st.integers(1, 700), st.data(), st.integers(1, 300)
)
@hypothesis.settings(max_examples=150, deadline=None)
def test_crop_scores_same_tokens_with_less_context(start, length, data, train):
  scored = data.draw(st.integers(1, length))
  segment = Segment(3, start, length, scored)
  windows = protocols.crop(segment, train)
  contexts = _scored(windows)
  whole = _scored([segment])
  assert contexts.keys() == whole.keys()
  stride = max(1, train // 4)
  for token, context in contexts.items():
    if whole[token] <= train:
      assert context == whole[token]
    else:
      assert train - stride + 1 <= context <= train
  for w in windows:
    assert start <= w.start and w.start + w.length <= start + length
  if length <= train:
    assert windows == [segment]


@hypothesis.given(
    st.lists(st.integers(1, 200), min_size=1, max_size=8),
    st.integers(1, 40),
    st.integers(1, 30),
)
@hypothesis.settings(max_examples=150, deadline=None)
def test_regions_do_not_overlap_and_are_spread(documents, longest, count):
  hypothesis.assume(max(documents) > longest)
  regions = protocols.choose_regions(documents, longest, count)
  capacity = [(n - 1) // longest for n in documents]
  assert len(regions) == min(count, sum(capacity))
  assert regions == sorted(set(regions))
  taken = collections.Counter(r.document for r in regions)
  for before, after in itertools.pairwise(regions):
    if before.document == after.document:
      assert before.start + longest <= after.start
  # A document only gives less than another one when it has no more.
  if len(taken) == sum(c > 0 for c in capacity):
    most = max(taken.values())
    for document, number in taken.items():
      assert number >= min(most - 1, capacity[document])
  else:
    assert set(taken.values()) == {1}


def test_last256_tiles_short_lengths_with_full_context():
  region = Region(document=1, start=400, length=512)
  assert protocols.last256(region, 512) == [Segment(1, 400, 512, 256)]
  assert protocols.last256(region, 300) == [Segment(1, 612, 300, 256)]
  # 256 = 56 + 100 + 100; the partial sub-block has 100 tokens of context too.
  assert protocols.last256(region, 100) == [
      Segment(1, 612, 100, 56),
      Segment(1, 712, 100, 100),
      Segment(1, 812, 100, 100),
  ]


def test_last256_stops_at_document_start():
  region = Region(document=0, start=0, length=256)
  assert protocols.last256(region, 200) == [
      Segment(0, 0, 56, 56),
      Segment(0, 56, 200, 200),
  ]


def test_all_includes_last_partial_segment():
  region = Region(document=2, start=10, length=10)
  assert protocols.all_positions(region, 4) == [
      Segment(2, 10, 4, 4),
      Segment(2, 14, 4, 4),
      Segment(2, 18, 2, 2),
  ]


def test_crop_windows_by_hand():
  assert protocols.crop(Segment(0, 5, 19, 19), 8) == [
      Segment(0, 5, 8, 8),
      *(Segment(0, start, 8, 2) for start in (7, 9, 11, 13, 15)),
      Segment(0, 16, 8, 1),
  ]


def test_no_document_long_enough_names_longest():
  with pytest.raises(ConfigError, match="use lengths up to 99"):
    protocols.choose_regions([20, 100, 50], 100, 4)
  assert protocols.choose_regions([20, 100, 50], 99, 4) == [Region(1, 0, 99)]


def test_unknown_protocol_suggests():
  with pytest.raises(ConfigError, match='Did you mean "last256"'):
    protocols.protocol("last265")


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
  assert protocols.parse_lengths(text) == lengths


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
def test_malformed_lengths_are_refused(text, reason):
  with pytest.raises(ConfigError, match=reason) as error:
    protocols.parse_lengths(text)
  assert "\n" not in str(error.value)
