"""Needle tasks against a simple parser of their rows."""

import numpy as np
import pytest

from dape_jax.data.tasks import needle
from dape_jax.errors import ConfigError

_NAMES = sorted(needle.TASKS)
_KEYED = [name for name in _NAMES if name != "passkey"]
# Digits, needles in the context, queried needles.
_FORMS = {
    "passkey": (5, 1, 1),
    "needle_single": (3, 1, 1),
    "needle_multi_key": (3, 4, 1),
    "needle_multi_value": (3, 4, 4),
}


def _sample(name, length, batch_size=64, seed=0, depth=None):
  rng = np.random.default_rng(seed)
  return needle.TASKS[name].sample(rng, length, batch_size, depth)


def _parse(name, row):
  """Returns [(key, digits, filler before it)] and the question's tokens."""
  keyed = name in _KEYED
  num_digits = _FORMS[name][0]
  needles, fillers, place = [], 0, 0
  while row[place] != needle.ASK:
    if row[place] == needle.MARK:
      place += 1
      key = row[place] if keyed else None
      place += keyed
      digits = row[place : place + num_digits]
      needles.append((key, digits, fillers))
      place += num_digits
    else:
      assert row[place] >= needle.FILLERS
      fillers += 1
      place += 1
  return needles, row[place:], fillers


def _queried(name, needles, question):
  key = question[1] if name in _KEYED else None
  return [found for found in needles if found[0] == key]


@pytest.mark.parametrize("depth", [None, 0.3])
@pytest.mark.parametrize("extra", [0, 1, 2, 50])
@pytest.mark.parametrize("name", _NAMES)
def test_answers_are_the_queried_digits(name, extra, depth):
  task = needle.TASKS[name]
  length = task.min_length + extra
  examples = _sample(name, length, depth=depth)
  num_digits, num_needles, num_queried = _FORMS[name]
  for tokens, targets, trained, scored in zip(
      examples.tokens.tolist(),
      examples.targets,
      examples.trained,
      examples.scored,
  ):
    assert len(tokens) == length
    needles, question, fillers = _parse(name, tokens)
    assert fillers == extra
    assert len(needles) == num_needles
    queried = _queried(name, needles, question)
    assert len(queried) == num_queried
    answers = [digit for _, digits, _ in queried for digit in digits]
    assert len(answers) == num_digits * num_queried
    assert targets[scored].tolist() == answers
    np.testing.assert_array_equal(trained, scored)
    # The answers end the row, each expected at the token before it.
    assert scored[-len(answers) :].all() and scored.sum() == len(answers)
    assert question[-len(answers) + 1 :] == answers[:-1]


@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("name", _NAMES)
def test_depth_is_the_fraction_of_filler_before_the_needle(name, depth):
  for row in _sample(name, 140, depth=depth).tokens.tolist():
    needles, question, fillers = _parse(name, row)
    for _, _, before in _queried(name, needles, question):
      assert abs(before - depth * fillers) <= 1
    # At the ends, the queried needle is the first or the last.
    order = [found in _queried(name, needles, question) for found in needles]
    if depth == 0:
      assert order[0]
    if depth == 1:
      assert order[-1]


@pytest.mark.parametrize("name", _NAMES)
def test_places_are_uniform_without_depth(name):
  length = needle.TASKS[name].min_length + 4
  counts = np.zeros(5)
  for row in _sample(name, length, 3000).tokens.tolist():
    needles, question, _ = _parse(name, row)
    for _, _, before in _queried(name, needles, question):
      counts[before] += 1
  np.testing.assert_allclose(counts / counts.sum(), 1 / 5, atol=0.04)


@pytest.mark.parametrize(
    "name, num_keys", [("needle_multi_key", 4), ("needle_multi_value", 1)]
)
def test_number_of_different_keys(name, num_keys):
  for row in _sample(name, 64).tokens.tolist():
    assert len({key for key, *_ in _parse(name, row)[0]}) == num_keys


def test_depth_must_be_a_fraction():
  with pytest.raises(ConfigError, match=r"depth=1\.5"):
    _sample("passkey", 64, depth=1.5)
