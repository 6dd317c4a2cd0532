import numpy as np
import pytest

from dape_jax.data.batches import Windows
from dape_jax.errors import ConfigError


@pytest.fixture(params=[16, 100, 4096])
def length(request):
  return request.param


def _all(split, length, packing):
  windows = Windows(split, length, packing)
  return [windows[i] for i in range(len(windows))]


@pytest.mark.parametrize("packing", ["segments", "plain"])
def test_every_token_is_a_target_once(corpus, length, packing):
  split = corpus.split("validation")
  windows = _all(split, length, packing)
  targets = np.concatenate([w["targets"] for w in windows])
  dropped = split.tokens.size - 1 - targets.size
  assert 0 <= dropped < length
  np.testing.assert_array_equal(targets, split.tokens[1 : 1 + targets.size])
  inputs = np.concatenate([w["inputs"] for w in windows])
  np.testing.assert_array_equal(inputs, split.tokens[: targets.size])


def test_segments_match_documents(corpus, length):
  split = corpus.split("validation")
  # The document of each token of the stream, and the token's offset in it.
  sizes = np.diff(split.starts)
  document = np.repeat(np.arange(len(split.starts) - 1), sizes)
  offset = np.concatenate([np.arange(size) for size in sizes])
  for index, window in enumerate(_all(split, length, "segments")):
    begin = index * length
    here = slice(begin, begin + length)
    np.testing.assert_array_equal(
        window["segment_ids"], 1 + document[here] - document[begin]
    )
    np.testing.assert_array_equal(
        window["positions"], np.minimum(offset[here], np.arange(length))
    )
    same = document[here] == document[begin + 1 : begin + length + 1]
    np.testing.assert_array_equal(window["loss_weights"], same)
    # Exactly the targets that follow an EOS have no loss.
    np.testing.assert_array_equal(
        window["loss_weights"] == 0, window["inputs"] == corpus.tokenizer.eos
    )


def test_plain_windows_are_one_segment_with_full_loss(corpus, length):
  for window in _all(corpus.split("validation"), length, "plain"):
    assert (window["segment_ids"] == 1).all()
    assert (window["loss_weights"] == 1).all()
    np.testing.assert_array_equal(window["positions"], np.arange(length))


def test_longest_window_is_the_split(corpus):
  split = corpus.split("validation")
  longest = split.tokens.size - 1
  assert len(Windows(split, longest, "plain")) == 1
  with pytest.raises(ConfigError, match=r"config.data.length.*validation"):
    Windows(split, longest + 1, "plain")
