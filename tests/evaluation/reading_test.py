"""Models of known probabilities have the perplexity of the closed form."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from dape_jax.attention.cache import append_tokens, empty_cache
from dape_jax.evaluation.memory import BatchSize
from dape_jax.evaluation.perplexity import make_step
from dape_jax.evaluation.reading import make_plan, read_lengths
from dape_jax.evaluation.results import make_row


class Known:
  """A model whose logits are log probabilities given by hand.

  Of the next token v after token u, p = transitions[u, v]; token 0 is further
  weighed down by the number of tokens read: its odds are divided by
  1 + slope (context - 1).
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
_TRAIN_LENGTH = 16
_PROTOCOLS = ("last256", "all", "sliding", "positionwise")


@pytest.fixture(scope="module")
def read():
  model, step = Known(), None

  def step_of(model):
    nonlocal step
    step = step or make_step(model)
    return step

  def rows(split, transitions, slope=0.0, batch_size=4, chunk=64, **plan):
    plan = make_plan(split, **{"lengths": _LENGTHS, "max_regions": 5} | plan)
    params = {
        "transitions": jnp.asarray(transitions, jnp.float32),
        "slope": jnp.float32(slope),
    }
    readings = read_lengths(
        model,
        params,
        plan,
        lengths=plan.lengths,
        train_length=_TRAIN_LENGTH,
        batch_size=BatchSize(batch_size, chunk),
        chunk=chunk,
        step_of=step_of,
    )
    return plan, [(make_row(n, r, plan, 1), r) for n, r in readings]

  return rows


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
def test_uniform_model(read, chain, protocol):
  _, rows = read(chain[0], np.full((3, 3), 1 / 3), protocol=protocol)
  for row, _ in rows:
    for prefix in ("", "crop_"):
      for field in ("perplexity", "perplexity_low", "perplexity_high"):
        assert row[prefix + field] == pytest.approx(3, rel=1e-6)


@pytest.mark.parametrize("protocol", _PROTOCOLS)
@pytest.mark.parametrize("batch_size, chunk", [(4, 64), (3, 7), (0, 64)])
def test_markov_chain(read, chain, protocol, batch_size, chunk):
  split, transitions = chain
  plan, rows = read(
      split, transitions, batch_size=batch_size, chunk=chunk, protocol=protocol
  )
  tokens = split.tokens.astype(int)
  expected = np.zeros(3)
  for region in plan.regions:
    offset = split.starts[region.document] + region.start
    text = tokens[offset : offset + region.length + 1]
    expected[region.document] -= np.log(transitions[text[:-1], text[1:]]).sum()
  assert len(rows) == (1 if protocol == "positionwise" else 2)
  for row, _ in rows:
    assert row["tokens"] == 5 * 50 and row["non_finite_tokens"] == 0
    for prefix in ("", "crop_"):
      np.testing.assert_allclose(
          row[f"{prefix}document_nats"], expected, rtol=1e-6
      )
      assert row[f"{prefix}perplexity"] == pytest.approx(
          np.exp(expected.sum() / 250), rel=1e-6
      )


def test_perplexity_is_that_of_the_entropy_rate(read, chain):
  split, transitions = chain
  values, vectors = np.linalg.eig(transitions.T)
  stationary = np.real(vectors[:, np.argmax(values.real)])
  stationary /= stationary.sum()
  entropy = -(stationary @ (transitions * np.log(transitions)).sum(1))
  _, rows = read(split, transitions, protocol="all", max_regions=100)
  row, _ = rows[0]
  assert row["perplexity_low"] < np.exp(entropy) < row["perplexity_high"]
  assert row["perplexity"] == pytest.approx(np.exp(entropy), rel=0.05)


def _contexts(protocol, length, region=50, stride=None):
  """Tokens that each target of a region is predicted from, by definition."""
  i = np.arange(region)
  if protocol == "all":
    return i % length + 1
  if protocol == "positionwise":
    return i + 1
  if protocol == "last256":
    # Blocks of `length` from the end, each read from the inputs at its place;
    # what is left at the beginning of the document has no more before it.
    left = region % length
    return np.where(i < left, i + 1, (i - left) % length + 1)
  # The first window holds `length` targets; later ones end every `stride`
  # tokens, and the last at the end.
  ends = np.minimum(length + stride * -(-(i + 1 - length) // stride), region)
  return np.where(i < length, i + 1, i + 1 - (ends - length))


@pytest.mark.parametrize("batch_size, chunk", [(4, 64), (3, 7)])
@pytest.mark.parametrize(
    "protocol, stride",
    [("last256", None), ("all", None), ("sliding", 3), ("positionwise", None)],
)
def test_context_of_each_token(read, protocol, stride, batch_size, chunk):
  """With odds 1 : context, a token costs ln(1 + context)."""
  split = _split(*(np.zeros(51, int),) * 5)
  plan, rows = read(
      split,
      np.full((2, 2), 0.5),
      slope=1.0,
      batch_size=batch_size,
      chunk=chunk,
      protocol=protocol,
      stride=stride,
  )
  for row, _ in rows:
    nats = np.log1p(_contexts(protocol, row["length"], stride=stride))
    np.testing.assert_allclose(row["document_nats"], [nats.sum()] * 5, 1e-5)
    assert row["stride"] == stride
    if row["length"] <= _TRAIN_LENGTH:
      assert row["crop_document_nats"] == row["document_nats"]
    else:
      assert row["crop_nats"] < row["nats"]
  _, reading = rows[-1]
  if protocol != "positionwise":
    assert reading["positions"] is None
    return
  assert plan.lengths == (50,)
  edges = [(p["begin"], p["end"]) for p in reading["positions"]]
  assert edges == [
      *((0, 1), (1, 2), (2, 4), (4, 8), (8, 16), (16, 32), (32, 50)),
  ]
  crops = np.log1p(_contexts("sliding", _TRAIN_LENGTH, stride=4))
  for p in reading["positions"]:
    begin, end = p["begin"], p["end"]
    assert p["tokens"] == 5 * (end - begin)
    assert p["loss"] == pytest.approx(nats[begin:end].mean(), rel=1e-5)
    assert p["nats"] == pytest.approx(p["loss"] * p["tokens"])
    assert p["crop_loss"] == pytest.approx(crops[begin:end].mean(), rel=1e-5)


def test_default_stride_is_a_quarter(read):
  split = _split(*(np.zeros(51, int),) * 5)
  rows = {}
  for stride in (None, 2):
    _, rows[stride] = read(
        split,
        np.full((2, 2), 0.5),
        slope=1.0,
        protocol="sliding",
        stride=stride,
        lengths=(8, 50),
    )
  assert [row["stride"] for row, _ in rows[None]] == [2, 12]
  assert [row["stride"] for row, _ in rows[2]] == [2, 2]
  assert rows[None][0][0]["nats"] == rows[2][0][0]["nats"]
