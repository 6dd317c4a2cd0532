"""Models with known probabilities have the perplexity of the closed form."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dape_jax.attention.cache import append_tokens, empty_cache
from dape_jax.config import ModelConfig
from dape_jax.evaluation.memory import BatchSize
from dape_jax.evaluation.perplexity import make_step, perplexity
from dape_jax.evaluation.results import make_row
from dape_jax.evaluation.scoring import make_plan, score_lengths
from dape_jax.models import Transformer


class Known:
  """A model with known probabilities.

  Token v follows token u with probability transitions[u, v], but the odds of
  token 0 are divided by 1 + slope * (context - 1).
  """

  def at_length(self, length):
    del length
    return self

  def empty_cache(self, batch_size, capacity):
    return empty_cache(1, batch_size, capacity, 1, 1, jnp.float32)

  def apply(self, variables, tokens_BxT, segment_ids, cache):
    params = variables["params"]
    before = cache.filled
    positions = jnp.broadcast_to(
        before + jnp.arange(tokens_BxT.shape[1]), tokens_BxT.shape
    )
    cache = append_tokens(cache, positions, segment_ids)
    logits = jnp.log(params["transitions"])[tokens_BxT]
    harder = jnp.log1p(params["slope"] * positions)
    return logits.at[..., 0].add(-harder), cache


_LENGTHS = (8, 50)
_NUM_BYTES = 300
_PROTOCOLS = ("last256", "all", "sliding", "positionwise")
_step_of = functools.cache(make_step)
_KNOWN = Known()


def _score(
    split, params, model=_KNOWN, batch_size=4, chunk=64, train=16, **plan
):
  """Returns the plan, and a row of results and the scores at each length."""
  plan = make_plan(split, **{"lengths": _LENGTHS, "max_regions": 5} | plan)
  scores = score_lengths(
      model,
      params,
      plan,
      lengths=plan.lengths,
      train_length=train,
      batch_size=BatchSize(batch_size, chunk),
      chunk=chunk,
      step_of=_step_of,
  )
  return plan, [(make_row(n, s, plan, _NUM_BYTES), s) for n, s in scores]


def _params(transitions, slope=0.0):
  return {
      "transitions": jnp.asarray(transitions, jnp.float32),
      "slope": jnp.float32(slope),
  }


def _split(*documents):
  return types.SimpleNamespace(
      tokens=np.concatenate(documents).astype(np.uint16),
      starts=np.cumsum([0, *map(len, documents)]),
  )


@pytest.fixture(scope="module")
def chain():
  """A Markov chain of three states with its transitions."""
  transitions = np.array([[0.1, 0.6, 0.3], [0.8, 0.1, 0.1], [0.25, 0.25, 0.5]])
  rng = np.random.default_rng(0)
  tokens = [0]
  for number in rng.random(4000):
    tokens.append(
        int(np.searchsorted(transitions[tokens[-1]].cumsum(), number))
    )
  tokens = np.array(tokens)
  return _split(tokens[:60], tokens[60:3000], tokens[3000:]), transitions


@pytest.mark.parametrize("protocol", _PROTOCOLS)
def test_uniform_model(chain, protocol):
  _, rows = _score(chain[0], _params(np.full((3, 3), 1 / 3)), protocol=protocol)
  for row, _ in rows:
    for prefix in ("", "crop_"):
      for field in ("perplexity", "perplexity_low", "perplexity_high"):
        assert row[prefix + field] == pytest.approx(3, rel=1e-6)


@pytest.mark.parametrize("protocol", _PROTOCOLS)
@pytest.mark.parametrize("batch_size, chunk", [(4, 64), (3, 7), (0, 64)])
def test_markov_chain(chain, protocol, batch_size, chunk):
  split, transitions = chain
  plan, rows = _score(
      split,
      _params(transitions),
      batch_size=batch_size,
      chunk=chunk,
      protocol=protocol,
  )
  tokens = split.tokens.astype(int)
  expected = np.zeros(3)
  for region in plan.regions:
    offset = split.starts[region.document] + region.start
    text = tokens[offset : offset + region.length + 1]
    expected[region.document] -= np.log(transitions[text[:-1], text[1:]]).sum()
  total = expected.sum()
  lengths = _LENGTHS[-1:] if protocol == "positionwise" else _LENGTHS
  assert tuple(row["length"] for row, _ in rows) == lengths
  for row, _ in rows:
    assert row["regions"] == 5 and row["tokens"] == 250
    assert row["documents"] == 3 and row["document_tokens"] == [50, 100, 100]
    assert row["bytes"] == _NUM_BYTES
    for prefix in ("", "crop_"):
      np.testing.assert_allclose(
          row[f"{prefix}document_nats"], expected, rtol=1e-6
      )
      numbers = {
          "nats": total,
          "perplexity": np.exp(total / 250),
          "bits_per_byte": total / np.log(2) / _NUM_BYTES,
          "non_finite_tokens": 0,
      }
      assert numbers == pytest.approx(
          {name: row[prefix + name] for name in numbers}, rel=1e-6
      )


def test_non_finite_results_are_counted(chain):
  split, transitions = chain
  broken = np.where(np.arange(3)[:, None] == 2, np.nan, transitions)
  plan, [(row, _), _] = _score(split, _params(broken), protocol="all")
  starts = [split.starts[r.document] + r.start for r in plan.regions]
  inputs = np.concatenate([split.tokens[s : s + 50] for s in starts])
  assert row["non_finite_tokens"] == (inputs == 2).sum()
  assert np.isnan(row["perplexity"]) and np.isnan(row["bits_per_byte"])
  assert perplexity(1e6, 1) == np.inf


def test_perplexity_approaches_the_entropy_rate(chain):
  split, transitions = chain
  values, vectors = np.linalg.eig(transitions.T)
  stationary = np.real(vectors[:, np.argmax(values.real)])
  stationary /= stationary.sum()
  entropy = -(stationary @ (transitions * np.log(transitions)).sum(1))
  _, rows = _score(split, _params(transitions), protocol="all", max_regions=100)
  row, _ = rows[0]
  assert row["perplexity_low"] < np.exp(entropy) < row["perplexity_high"]
  assert row["perplexity"] == pytest.approx(np.exp(entropy), rel=0.05)


def _contexts(protocol, length, region=50, stride=None):
  """Returns the number of tokens before each target, by definition."""
  i = np.arange(region)
  if protocol == "all":
    return i % length + 1
  if protocol == "positionwise":
    return i + 1
  if protocol == "last256":
    # Blocks of `length` end with the region; the remainder at the beginning of
    # the document has no tokens before it.
    left = region % length
    return np.where(i < left, i + 1, (i - left) % length + 1)
  # The first window holds `length` targets; later ones end every `stride`
  # tokens, and the last at the end.
  ends = np.minimum(length + stride * -(-(i + 1 - length) // stride), region)
  return np.where(i < length, i + 1, i + 1 - (ends - length))


@pytest.mark.parametrize("batch_size, chunk", [(4, 64), (3, 7)])
@pytest.mark.parametrize(
    "protocol, stride",
    [*((name, None) for name in _PROTOCOLS), ("sliding", 3)],
)
def test_context_of_each_token(protocol, stride, batch_size, chunk):
  """With odds 1 : context, a token costs ln(1 + context)."""
  plan, rows = _score(
      _split(*(np.zeros(51, int),) * 5),
      _params(np.full((2, 2), 0.5), slope=1.0),
      batch_size=batch_size,
      chunk=chunk,
      protocol=protocol,
      stride=stride,
  )
  for row, _ in rows:
    used = stride
    if protocol == "sliding":
      used = stride or row["length"] // 4
    nats = np.log1p(_contexts(protocol, row["length"], stride=used))
    np.testing.assert_allclose(row["document_nats"], [nats.sum()] * 5, 1e-5)
    assert row["stride"] == used
    if row["length"] <= 16:
      assert row["crop_document_nats"] == row["document_nats"]
    else:
      assert row["crop_nats"] < row["nats"]
  scores = rows[-1][1]
  if protocol != "positionwise":
    assert scores["positions"] is None
    return
  assert plan.lengths == (50,)
  edges = [(p["begin"], p["end"]) for p in scores["positions"]]
  assert edges == [
      *((0, 1), (1, 2), (2, 4), (4, 8), (8, 16), (16, 32), (32, 50)),
  ]
  crops = np.log1p(_contexts("sliding", 16, stride=4))
  for p in scores["positions"]:
    begin, end = p["begin"], p["end"]
    assert p["tokens"] == 5 * (end - begin)
    assert p["loss"] == pytest.approx(nats[begin:end].mean(), rel=1e-5)
    assert p["nats"] == pytest.approx(p["loss"] * p["tokens"])
    assert p["crop_loss"] == pytest.approx(crops[begin:end].mean(), rel=1e-5)


def test_dynamic_ntk_has_one_base_per_segment(chain):
  config = ModelConfig(
      **dict(vocab_size=32, num_layers=2, width=16, num_heads=2),
      dtype="float32",
      encoding="rope_dynamic_ntk",
      encoding_options={"train_length": 8},
  )
  plain = dataclasses.replace(config, encoding="rope", encoding_options={})
  tokens = jnp.zeros((1, 4), jnp.int32)
  params = jax.jit(Transformer(plain).init)(jax.random.key(0), tokens)["params"]
  # Far from uniform, so that a wrong context shows.
  params = jax.tree.map(lambda x: 2 * x, params)
  settings = dict(train=8, lengths=(8, 16), protocol="all")
  dynamic, expected = (
      [
          row
          for row, _ in _score(chain[0], params, Transformer(c), **settings)[1]
      ]
      for c in (config, plain)
  )
  ratios = [d["nats"] / e["nats"] for d, e in zip(dynamic, expected)]
  assert ratios[0] == pytest.approx(1, rel=1e-6)
  assert ratios[1] != pytest.approx(1, rel=1e-4)
  for row, of_rope in zip(dynamic, expected):
    assert row["crop_nats"] == pytest.approx(of_rope["crop_nats"], rel=1e-6)
