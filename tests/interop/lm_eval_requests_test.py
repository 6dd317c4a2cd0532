"""Batching of texts and parsing of generation_kwargs."""

import collections

import hypothesis
import hypothesis.strategies as st
import pytest

from dape_jax.config import ModelConfig
from dape_jax.errors import ConfigError
from dape_jax.interop import lm_eval_requests
from dape_jax.models import Transformer


@hypothesis.given(st.lists(st.integers(1, 300), max_size=20), st.integers(1, 5))
def test_batches(lengths, batch_size):
  batches = lm_eval_requests.batches_by_length(lengths, batch_size)
  members = [i for _, batch in batches for i in batch]
  assert sorted(members) == list(range(len(lengths)))
  assert sorted(batches, key=lambda b: -b[0]) == batches
  texts, count = collections.Counter(), collections.Counter()
  for bucket, batch in batches:
    assert 0 < len(batch) <= batch_size
    for i in batch:
      assert lengths[i] <= bucket < max(2 * lengths[i], 65)
    texts[bucket] += len(batch)
    count[bucket] += 1
  for bucket in count:
    assert count[bucket] == -(-texts[bucket] // batch_size)


def _generation(**changes):
  normal = {"until": [], "max_gen_toks": 256, "do_sample": False}
  return lm_eval_requests.generation_of(normal | changes)


def test_generation():
  greedy = lm_eval_requests.Generation((), 256, 0.0, 0, 1.0)
  assert _generation() == greedy
  assert _generation(temperature=0, num_beams=1, until=[""]) == greedy
  assert _generation(temperature=0.7) == greedy
  assert _generation(do_sample=True) == greedy
  assert _generation(
      until=["a", "b c"],
      max_gen_toks=5,
      do_sample=True,
      temperature=2,
      top_k=3,
      top_p=0.5,
  ) == (("a", "b c"), 5, 2.0, 3, 0.5)


@pytest.mark.parametrize(
    "gen_kwargs, message",
    [
        ({"num_beams": 4}, "num_beams: beam search is not supported"),
        ({"top_pp": 0.9}, 'top_pp is not supported. Did you mean "top_p"'),
    ],
)
def test_bad_generation(gen_kwargs, message):
  with pytest.raises(ConfigError, match=message):
    _generation(**gen_kwargs)


def test_cut_left():
  texts = [[1, 2, 3], [4]]
  cut = lm_eval_requests.cut_left
  assert cut(texts, limit=None, needed=3) is texts
  assert cut(texts, limit=2, needed=2) == [[2, 3], [4]]
  with pytest.raises(ConfigError, match=r"leaves 2 tokens .* needs 4; .* by 2"):
    cut(texts, limit=2, needed=4)


def test_text_beyond_the_position_limit_raises():
  config = ModelConfig(
      width=16,
      num_heads=2,
      encoding="learned",
      encoding_options={"max_length": 8},
  )
  scored_text = lm_eval_requests.ScoredText(list(range(10)), 1)
  with pytest.raises(ConfigError, match=r"a text of 9 tokens: .* ends at 8"):
    next(
        lm_eval_requests.read_texts(
            Transformer(config), None, [scored_text], batch_size=1
        )
    )
