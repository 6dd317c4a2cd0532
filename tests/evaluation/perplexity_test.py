"""Chunked and batched nats equal those of one full forward pass."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dape_jax.config import ModelConfig
from dape_jax.evaluation import perplexity
from dape_jax.evaluation.memory import BatchSize
from dape_jax.evaluation.protocols import Segment
from dape_jax.evaluation.reading import make_plan, read_lengths
from dape_jax.evaluation.results import make_row
from dape_jax.models import Transformer

_VOCAB = 32
# Shared, because compiling takes longer than running.
_step_of = functools.cache(perplexity.make_step)


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


def _split(*documents):
  starts = np.cumsum([0, *map(len, documents)])
  return types.SimpleNamespace(
      tokens=np.concatenate(documents).astype(np.uint16), starts=starts
  )


@pytest.fixture(scope="module")
def segment_scores(model_and_params):
  model, _ = model_and_params
  return perplexity.make_segment_scores(model, _step_of(model))


@pytest.fixture(scope="module")
def split():
  rng = np.random.default_rng(0)
  # Token 0 is a token like others, as input and as target.
  return _split(*(rng.integers(0, _VOCAB, n) for n in (40, 90, 61)))


_TOKENIZER = types.SimpleNamespace(
    num_bytes=lambda ids: np.where(np.asarray(ids) == 31, 0, 2)
)


_JITTED = {}


def _by_numpy(model, params, split, segment):
  """The definition: one forward pass, softmax by hand, targets picked."""
  offset = split.starts[segment.document] + segment.start
  tokens = np.asarray(split.tokens[offset : offset + segment.length + 1], int)
  # Of one length, because compiling takes longer than reading; the model is
  # causal, so what follows the segment has no effect on it.
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


@pytest.mark.parametrize(
    "batch_size, chunk, segments",
    [
        (1, 128, _SEGMENTS[:2]),
        (3, 7, _SEGMENTS[1:]),
        (8, 32, _SEGMENTS),
        # As many capacities as the length has binary digits.
        (2, 1, _SEGMENTS[2:]),
    ],
)
def test_nats_equal_numpy(
    model_and_params, segment_scores, split, batch_size, chunk, segments
):
  model, params = model_and_params
  read = []
  nats = perplexity.score_segments(
      segment_scores,
      params,
      split,
      [*segments, segments[0]],
      batch_size=batch_size,
      chunk=chunk,
      on_tokens=read.append,
  )
  assert nats.keys() == set(segments)
  assert sum(read) == sum(s.length for s in segments)
  for segment in segments:
    assert nats[segment].dtype == np.float32
    expected = _by_numpy(model, params, split, segment)
    np.testing.assert_allclose(nats[segment], expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("encoding", ["dape_v2_kerple_log"])
def test_other_encodings_equal_numpy(encoding, split):
  model, params = _model(encoding)
  nats = perplexity.score_segments(
      perplexity.make_segment_scores(model),
      params,
      split,
      _SEGMENTS[:2],
      batch_size=2,
      chunk=32,
  )
  for segment, got in nats.items():
    expected = _by_numpy(model, params, split, segment)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


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
  nats = perplexity.score_segments(
      perplexity.make_segment_scores(model),
      params,
      split,
      [_SEGMENTS[0]],
      batch_size=1,
      chunk=12,
  )
  expected = _by_numpy(model, params, split, _SEGMENTS[0])
  np.testing.assert_allclose(nats[_SEGMENTS[0]], expected, rtol=2e-5, atol=2e-5)


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


def _evaluate(
    model, params, split, lengths=(8, 16, 38), train_length=16, protocol="all"
):
  plan = make_plan(split, lengths=lengths, protocol=protocol, max_regions=4)
  num_bytes = sum(_TOKENIZER.num_bytes(t).sum() for t in plan.targets)
  readings = read_lengths(
      model,
      params,
      plan,
      lengths=plan.lengths,
      train_length=train_length,
      batch_size=BatchSize(4, chunk=64),
      chunk=64,
      step_of=_step_of,
  )
  return [make_row(n, reading, plan, num_bytes) for n, reading in readings]


def test_uniform_model_has_perplexity_of_vocabulary(model_and_params, split):
  model, params = model_and_params
  params = params | {"head": jax.tree.map(jnp.zeros_like, params["head"])}
  for row in _evaluate(model, params, split, protocol="last256"):
    assert row["perplexity"] == pytest.approx(_VOCAB, rel=1e-6)
    assert row["crop_perplexity"] == pytest.approx(_VOCAB, rel=1e-6)
    assert row["non_finite_tokens"] == 0


def test_rows_follow_from_nats(model_and_params, split):
  model, params = model_and_params
  rows = _evaluate(model, params, split)
  # Regions of 38 inputs: 1 of document 0, 2 of document 1, 1 of document 2.
  regions = [(0, 0), (1, 0), (1, 38), (2, 0)]
  targets = np.concatenate(
      [split.tokens[split.starts[d] + s + 1 :][:38] for d, s in regions]
  )
  num_bytes = _TOKENIZER.num_bytes(targets).sum()
  assert [row["length"] for row in rows] == [8, 16, 38]
  for row in rows:
    assert row["regions"] == 4
    assert row["documents"] == len(row["document_nats"]) == 3
    assert row["document_tokens"] == [38, 76, 38]
    assert row["tokens"] == len(targets) and row["bytes"] == num_bytes
    length = row["length"]
    expected = [
        sum(
            _by_numpy(
                model,
                params,
                split,
                Segment(d, s + i, min(length, 38 - i), min(length, 38 - i)),
            ).sum()
            for i in range(0, 38, length)
        )
        for d, s in regions
    ]
    of_documents = [expected[0], expected[1] + expected[2], expected[3]]
    np.testing.assert_allclose(row["document_nats"], of_documents, rtol=1e-5)
    assert row["nats"] == pytest.approx(sum(expected), rel=1e-5)
    assert row["perplexity"] == pytest.approx(
        np.exp(sum(expected) / len(targets)), rel=1e-4
    )
    assert row["bits_per_byte"] == pytest.approx(
        row["nats"] / np.log(2) / num_bytes
    )
  # Up to the training length the crop baseline is the result itself.
  for row in rows[:2]:
    assert row["crop_document_nats"] == row["document_nats"]
  assert rows[2]["crop_document_nats"] != rows[2]["document_nats"]


def test_non_finite_results_are_counted(model_and_params, split):
  model, params = model_and_params
  embedding = params["embedding"].at[5].set(jnp.nan)
  row = _evaluate(
      model, params | {"embedding": embedding}, split, lengths=[16]
  )[0]
  assert 0 < row["non_finite_tokens"] < row["tokens"]
  assert np.isnan(row["perplexity"]) and np.isnan(row["bits_per_byte"])
  assert perplexity.perplexity(1e6, 1) == np.inf


def test_learned_positions_end_at_the_table_and_not_at_the_chunk(split):
  """A segment of 20 tokens in a chunk of 32: padding has no position."""
  model, params = _model("learned", max_length=20)
  segment_scores = perplexity.make_segment_scores(model)
  read = lambda length: perplexity.score_segments(
      segment_scores,
      params,
      split,
      [Segment(1, 0, length, length)],
      batch_size=1,
      chunk=32,
  )
  [nats] = read(20).values()
  assert np.isfinite(nats).all()
  with pytest.raises(Exception, match="max_length=20 has rows for 0 to 19"):
    read(21)


def test_dynamic_ntk_has_one_base_for_each_reading(split):
  model, params = _model("rope_dynamic_ntk", train_length=8)
  rows = _evaluate(model, params, split, lengths=(8, 16), train_length=8)
  plain = Transformer(
      dataclasses.replace(model.config, encoding="rope", encoding_options={})
  )
  expected = _evaluate(plain, params, split, lengths=(8, 16), train_length=8)
  assert rows[0]["nats"] == pytest.approx(expected[0]["nats"], rel=1e-6)
  assert rows[1]["nats"] != pytest.approx(expected[1]["nats"], rel=1e-4)
  for row, of_rope in zip(rows, expected):
    assert row["crop_nats"] == pytest.approx(of_rope["crop_nats"], rel=1e-6)
