"""Every protocol scores the same tokens at every length, each exactly once."""

import hypothesis
import hypothesis.strategies as st
import pytest

from dape_jax.errors import ConfigError
from dape_jax.evaluation import protocols
from dape_jax.evaluation.protocols import Segment
from dape_jax.evaluation.regions import Region, choose_regions


def _scored(segments):
  """Returns {(document, token): context}; checks that tokens are unique."""
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
    st.none() | st.integers(1, 900),
)
@hypothesis.settings(max_examples=200, deadline=None)
def test_lengths_score_same_tokens_once(
    documents, longest, shorter, max_regions, name, stride
):
  hypothesis.assume(max(documents) > longest)
  length = longest if name == "positionwise" else min(shorter, longest)
  if name != "sliding" or (stride or 0) > length:
    stride = None
  regions = choose_regions(documents, longest, max_regions)
  segments_of = protocols.protocol(name, stride)
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


@pytest.mark.parametrize(
    "name, stride, region, length, expected",
    [
        ("last256", None, (1, 400, 512), 512, [(1, 400, 512, 256)]),
        ("last256", None, (1, 400, 512), 300, [(1, 612, 300, 256)]),
        (  # 256 = 56 + 100 + 100; the partial block has full context too.
            *("last256", None, (1, 400, 512), 100),
            [(1, 612, 100, 56), (1, 712, 100, 100), (1, 812, 100, 100)],
        ),
        (  # No tokens before the document.
            *("last256", None, (0, 0, 256), 200),
            [(0, 0, 56, 56), (0, 56, 200, 200)],
        ),
        (  # The last segment is partial.
            *("all", None, (2, 10, 10), 4),
            [(2, 10, 4, 4), (2, 14, 4, 4), (2, 18, 2, 2)],
        ),
        (
            *("sliding", 3, (2, 10, 11), 4),
            [(2, 10, 4, 4), (2, 13, 4, 3), (2, 16, 4, 3), (2, 17, 4, 1)],
        ),
        (  # Like "all", except for the context of the last.
            *("sliding", 4, (2, 10, 11), 4),
            [(2, 10, 4, 4), (2, 14, 4, 4), (2, 17, 4, 3)],
        ),
        (  # The default stride is 8 / 4.
            *("sliding", None, (2, 10, 11), 8),
            [(2, 10, 8, 8), (2, 12, 8, 2), (2, 13, 8, 1)],
        ),
        ("sliding", None, (2, 10, 11), 11, [(2, 10, 11, 11)]),
        ("positionwise", None, (2, 10, 11), 11, [(2, 10, 11, 11)]),
    ],
)
def test_segments_by_hand(name, stride, region, length, expected):
  segments_of = protocols.protocol(name, stride)
  assert segments_of(Region(*region), length) == expected


def test_crop_windows_by_hand():
  assert protocols.crop(Segment(0, 5, 19, 19), 8) == [
      Segment(0, 5, 8, 8),
      *(Segment(0, start, 8, 2) for start in (7, 9, 11, 13, 15)),
      Segment(0, 16, 8, 1),
  ]


@pytest.mark.parametrize(
    "name, stride, message",
    [
        ("last265", None, 'Did you mean "last256"'),
        ("all", 5, "--protocol=all has none"),
        ("sliding", 5, "--stride=5.*use at most 4"),
    ],
)
def test_bad_protocols_and_strides_are_rejected(name, stride, message):
  with pytest.raises(ConfigError, match=message):
    protocols.protocol(name, stride)(Region(0, 0, 11), 4)


@pytest.mark.parametrize(
    "lengths, edges",
    [
        ([6, 12, 20], [0, 1, 2, 4, 6, 8, 12, 16, 20]),
        ([16], [0, 1, 2, 4, 8, 16]),
        ([1], [0, 1]),
    ],
)
def test_position_edges(lengths, edges):
  assert protocols.position_edges(lengths) == edges
