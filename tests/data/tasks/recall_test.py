"""Recall tasks against replays and look-ups in plain Python."""

import numpy as np
import pytest

from dape_jax.data.tasks import recall
from dape_jax.errors import ConfigError

_LENGTHS = [4, 5, 6, 7, 16, 33, 64, 200]
_NAMES = sorted(recall.TASKS)


def _sample(name, length, batch_size=64, seed=0):
  rng = np.random.default_rng(seed)
  return recall.TASKS[name].sample(rng, length, batch_size)


def _flip_flop_answers(row):
  answers, memory = {}, None
  for place in range(0, len(row), 2):
    instruction, bit = row[place : place + 2]
    if instruction == 2:
      memory = bit
    elif instruction == 4:
      assert bit == memory
      answers[place] = memory
    else:
      assert instruction == 3
  return answers


def _copy_answers(row):
  assert row.count(8) == 1
  separator = row.index(8)
  string = row[:separator]
  assert row[separator + 1 :] == string[:-1]
  return {separator + i: symbol for i, symbol in enumerate(string)}


def _induction_answers(row):
  earlier = [i for i, token in enumerate(row[:-1]) if token == row[-1]]
  assert len(earlier) == 1
  return {len(row) - 1: row[earlier[0] + 1]}


def _mqar_answers(row):
  num_pairs = max(1, len(row) // 16)
  values = {}
  for place in range(0, 2 * num_pairs, 2):
    assert row[place] > 256 > row[place + 1]
    values[row[place]] = row[place + 1]
  assert len(values) == len(set(values.values())) == num_pairs
  answers = {}
  for place in range(2 * num_pairs, len(row)):
    if row[place] != 256:
      assert place % 2 == 0
      answers[place] = values.pop(row[place])
  assert not values
  return answers


_ORACLES = {
    "flip_flop": _flip_flop_answers,
    "flip_flop_sparse": _flip_flop_answers,
    "copy": _copy_answers,
    "induction": _induction_answers,
    "mqar": _mqar_answers,
}


def _replayed(name, examples):
  """Returns the oracle's answers [B, T], -1 where none is expected."""
  answers = np.full(examples.tokens.shape, -1)
  for row, tokens in zip(answers, examples.tokens.tolist()):
    for place, answer in _ORACLES[name](tokens).items():
      row[place] = answer
  return answers


@pytest.mark.parametrize("length", _LENGTHS)
@pytest.mark.parametrize("name", _NAMES)
def test_answers_match_a_replay(name, length):
  examples = _sample(name, length)
  answers = _replayed(name, examples)
  np.testing.assert_array_equal(examples.scored, answers >= 0)
  np.testing.assert_array_equal(examples.trained, answers >= 0)
  np.testing.assert_array_equal(
      examples.targets[examples.scored], answers[answers >= 0]
  )


def test_odd_lengths_give_one_token_fewer():
  for name in ("flip_flop", "mqar"):
    assert recall.TASKS[name].row_length(33) == 32


@pytest.mark.parametrize(
    "name, ignored", [("flip_flop", 0.8), ("flip_flop_sparse", 0.98)]
)
def test_flip_flop_frequencies(name, ignored):
  # FFL(p): ignore with p, write and read with (1 - p) / 2.
  tokens = _sample(name, 512, 512).tokens
  assert set(tokens[:, 0]) == {2} and set(tokens[:, -2]) == {4}
  free = tokens[:, 2:-2:2]
  frequencies = np.bincount(free.ravel(), minlength=5)[2:] / free.size
  rest = (1 - ignored) / 2
  np.testing.assert_allclose(frequencies, [rest, ignored, rest], atol=0.004)
  bits = tokens[:, 1::2][tokens[:, ::2] != 4]
  np.testing.assert_allclose(bits.mean(), 0.5, atol=0.01)


def test_induction_places_are_uniform():
  tokens = _sample("induction", 10, 8000).tokens
  places = (tokens[:, :-1] == tokens[:, -1:]).argmax(axis=1)
  np.testing.assert_allclose(
      np.bincount(places, minlength=8) / 8000, 1 / 8, atol=0.02
  )


def test_mqar_gaps_follow_the_power_law():
  # One pair, hence one draw.
  examples = _sample("mqar", 16, 20_000)
  gaps = examples.scored.argmax(axis=1) // 2
  weights = np.arange(1, 8) ** (0.01 - 1)
  np.testing.assert_allclose(
      np.bincount(gaps, minlength=8)[1:] / 20_000,
      weights / weights.sum(),
      atol=0.015,
  )


@pytest.mark.parametrize("length, pairs", [(64, 4), (128, 8), (256, 16)])
def test_mqar_pairs_are_as_published(length, pairs):
  assert (_sample("mqar", length).scored.sum(axis=1) == pairs).all()


def test_mqar_maximum_length():
  _replayed("mqar", _sample("mqar", 4095, 1))
  with pytest.raises(ConfigError, match="at most 4095"):
    _sample("mqar", 4096, 1)
