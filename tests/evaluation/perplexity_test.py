"""Chunked and batched nats equal those of one full forward pass."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dape_jax.config import ModelConfig
from dape_jax.evaluation import perplexity
from dape_jax.evaluation.protocols import Segment
from dape_jax.models import Transformer

_VOCAB = 32


def _model(encoding="kerple_log", **options):
  model = Transformer(
      ModelConfig(
          vocab_size=_VOCAB,
          num_layers=2,
          width=16,
          num_heads=2,
          encoding=encoding,
          encoding_options=options,
          dtype="float32",
      )
  )
  init = jax.jit(model.init)
  params = init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
  # Far from uniform, so that a wrong token or context shows.
  return model, jax.tree.map(lambda x: 2 * x, params)


@pytest.fixture(scope="module")
def model_and_params():
  return _model()


@pytest.fixture(scope="module")
def segment_scores(model_and_params):
  model, _ = model_and_params
  return perplexity.make_segment_scores(model)


@pytest.fixture(scope="module")
def split():
  rng = np.random.default_rng(0)
  # Token 0 is not special, neither as input nor as target.
  return types.SimpleNamespace(
      tokens=rng.integers(0, _VOCAB, 191).astype(np.uint16),
      starts=np.array([0, 40, 130, 191]),
  )


_JITTED = {}


def _by_numpy(model, params, split, segment):
  """The definition: one forward pass, softmax by hand, targets picked."""
  offset = split.starts[segment.document] + segment.start
  tokens = np.asarray(split.tokens[offset : offset + segment.length + 1], int)
  # Pad to one length to compile once; the model is causal, so the padding has
  # no effect on the segment.
  padded = np.zeros((1, 48), np.int32)
  padded[0, : segment.length] = tokens[:-1]
  apply = _JITTED.setdefault(model.config.encoding, jax.jit(model.apply))
  logits = apply({"params": params}, padded)
  logits = np.asarray(logits[0, : segment.length], np.float64)
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  nats = -log_probs[np.arange(segment.length), tokens[1:]]
  return nats[segment.length - segment.scored :]


_SEGMENTS = [
    Segment(1, 0, 40, 40),
    Segment(1, 42, 47, 20),
    Segment(0, 3, 8, 8),
    Segment(2, 30, 7, 1),
    Segment(2, 0, 1, 1),
]


def _check_nats(model, params, segment_scores, split, segments, **sizes):
  """Checks scores against `_by_numpy`."""
  nats = perplexity.score_segments(
      segment_scores, params, split, segments, **sizes
  )
  assert nats.keys() == set(segments)
  for segment, found in nats.items():
    assert found.dtype == np.float32
    expected = _by_numpy(model, params, split, segment)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "batch_size, chunk, segments",
    [
        (1, 128, _SEGMENTS[:2]),
        (3, 7, _SEGMENTS[1:]),
        (8, 32, _SEGMENTS),
        # The cache grows from one token.
        (2, 1, _SEGMENTS[2:]),
    ],
)
def test_nats_equal_numpy(
    model_and_params, segment_scores, split, batch_size, chunk, segments
):
  done = []
  _check_nats(
      *model_and_params,
      functools.partial(segment_scores, on_tokens=done.append),
      split,
      [*segments, segments[0]],
      batch_size=batch_size,
      chunk=chunk,
  )
  assert sum(done) == sum(s.length for s in segments)


def test_dape_v2_equals_numpy(split):
  model, params = _model("dape_v2_kerple_log")
  segment_scores = perplexity.make_segment_scores(model)
  _check_nats(
      *(model, params, segment_scores, split, _SEGMENTS[:2]),
      batch_size=2,
      chunk=32,
  )


def test_padding_does_not_change_scores(model_and_params, segment_scores):
  _, params = model_and_params
  rows = np.arange(60).reshape(2, 30) % _VOCAB
  garbage = rows.copy()
  garbage[1, 11:] = 65535
  clean, dirty = (
      segment_scores(params, r, [29, 10], [29, 10], 32) for r in (rows, garbage)
  )
  for a, b in zip(clean, dirty, strict=True):
    np.testing.assert_array_equal(a.nats, b.nats)
    np.testing.assert_array_equal(a.is_top, b.is_top)


def test_unused_cache_slots_do_not_change_scores(
    model_and_params, split, monkeypatch
):
  model, params = model_and_params

  def poisoned(cache, capacity):
    used = cache.capacity
    cache = grow_cache(cache, capacity)
    return cache.replace(
        keys=cache.keys.at[:, :, used:].set(jnp.nan),
        values=cache.values.at[:, :, used:].set(jnp.nan),
    )

  grow_cache = perplexity.grow_cache
  monkeypatch.setattr(perplexity, "grow_cache", poisoned)
  segment_scores = perplexity.make_segment_scores(model)
  _check_nats(
      *(model, params, segment_scores, split, _SEGMENTS[:1]),
      batch_size=1,
      chunk=12,
  )


def test_compiles_once_per_capacity(model_and_params, split):
  model, params = model_and_params
  traced = []

  class Counting:
    empty_cache = staticmethod(model.empty_cache)

    @staticmethod
    def apply(variables, tokens, *, cache, **kwargs):
      traced.append((*tokens.shape, cache.capacity))
      return model.apply(variables, tokens, cache=cache, **kwargs)

  segment_scores = perplexity.make_segment_scores(Counting)
  for length in (36, 40, 47):
    segments = [Segment(1, start, length, length) for start in (0, 1, 2)]
    perplexity.score_segments(
        segment_scores, params, split, segments, batch_size=2, chunk=16
    )
  assert traced == [(2, 16, 16), (2, 16, 32), (2, 16, 64)]


def test_learned_positions_end_at_the_table_and_not_at_the_chunk(split):
  """In a chunk of 32, a segment of 20 tokens leaves padding without one."""
  model, params = _model("learned", max_length=20)
  segment_scores = perplexity.make_segment_scores(model)
  score = lambda length: perplexity.score_segments(
      segment_scores,
      params,
      split,
      [Segment(1, 0, length, length)],
      batch_size=1,
      chunk=32,
  )
  [nats] = score(20).values()
  assert np.isfinite(nats).all()
  with pytest.raises(Exception, match="max_length=20 has rows for 0 to 19"):
    score(21)
