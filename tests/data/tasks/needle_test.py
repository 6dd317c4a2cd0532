"""Needle tasks against a plain reading of their rows."""

import time

import numpy as np
import pytest

from dape_jax.data.tasks import needle
from dape_jax.errors import ConfigError

_NAMES = sorted(needle.TASKS)
_KEYED = [name for name in _NAMES if name != "passkey"]
# Digits, needles in the context, needles asked for.
_FORMS = {
    "passkey": (5, 1, 1),
    "needle_single": (3, 1, 1),
    "needle_multi_key": (3, 4, 1),
    "needle_multi_value": (3, 4, 4),
}


def _sample(name, length, batch_size=64, seed=0, depth=None):
  rng = np.random.default_rng(seed)
  return needle.TASKS[name]().sample(rng, length, batch_size, depth)


def _read(name, row):
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


def _asked(name, needles, question):
  key = question[1] if name in _KEYED else None
  return [found for found in needles if found[0] == key]


@pytest.mark.parametrize("depth", [None, 0.3])
@pytest.mark.parametrize("extra", [0, 1, 2, 50])
@pytest.mark.parametrize("name", _NAMES)
def test_answers_are_those_of_the_asked_needles(name, extra, depth):
  task = needle.TASKS[name]()
  length = task.min_length + extra
  examples = _sample(name, length, depth=depth)
  num_digits, num_needles, num_asked = _FORMS[name]
  for tokens, targets, trained, scored in zip(
      examples.tokens.tolist(),
      examples.targets,
      examples.trained,
      examples.scored,
  ):
    assert len(tokens) == length
    needles, question, fillers = _read(name, tokens)
    assert fillers == extra
    assert len(needles) == num_needles
    asked = _asked(name, needles, question)
    assert len(asked) == num_asked
    answers = [digit for _, digits, _ in asked for digit in digits]
    assert len(answers) == num_digits * num_asked
    assert targets[scored].tolist() == answers
    np.testing.assert_array_equal(trained, scored)
    # The answers end the row, each at the token in front of it.
    assert scored[-len(answers) :].all() and scored.sum() == len(answers)
    assert question[-len(answers) + 1 :] == answers[:-1]


@pytest.mark.parametrize("name", _NAMES)
def test_dtypes_and_ids(name):
  task = needle.TASKS[name]()
  examples = _sample(name, 100, 256)
  assert examples.tokens.dtype == examples.targets.dtype == np.int32
  assert set(np.unique(examples.tokens)) <= set(range(task.vocab_size))
  assert examples.tokens.max() == task.vocab_size - 1
  assert examples.targets.max() == task.num_outputs - 1


@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("name", _NAMES)
def test_depth_is_how_much_filler_stands_in_front(name, depth):
  for row in _sample(name, 140, depth=depth).tokens.tolist():
    needles, question, fillers = _read(name, row)
    for _, _, before in _asked(name, needles, question):
      assert abs(before - depth * fillers) <= 1
    # At the ends it is the very first and the very last.
    order = [found in _asked(name, needles, question) for found in needles]
    if depth == 0:
      assert order[0]
    if depth == 1:
      assert order[-1]


@pytest.mark.parametrize("name", _NAMES)
def test_without_a_depth_places_are_uniform(name):
  length = needle.TASKS[name]().min_length + 4
  counts = np.zeros(5)
  for row in _sample(name, length, 3000).tokens.tolist():
    needles, question, _ = _read(name, row)
    for _, _, before in _asked(name, needles, question):
      counts[before] += 1
  np.testing.assert_allclose(counts / counts.sum(), 1 / 5, atol=0.04)


@pytest.mark.parametrize("name", _NAMES)
def test_constant_answers_score_chance(name):
  examples = _sample(name, 64, 4096)
  wanted = examples.targets[examples.scored]
  np.testing.assert_allclose(
      np.bincount(wanted) / wanted.size,
      needle.TASKS[name].chance,
      atol=5 * np.sqrt(0.1 / wanted.size),
  )


def test_keys_differ_but_those_of_multi_value():
  for row in _sample("needle_multi_key", 64).tokens.tolist():
    assert len({key for key, *_ in _read("needle_multi_key", row)[0]}) == 4
  for row in _sample("needle_multi_value", 64).tokens.tolist():
    assert len({key for key, *_ in _read("needle_multi_value", row)[0]}) == 1


@pytest.mark.parametrize("name", _NAMES)
def test_too_short_and_wrong_depths_are_refused(name):
  least = needle.TASKS[name]().min_length
  with pytest.raises(ConfigError, match=f"at least {least}"):
    _sample(name, least - 1)
  with pytest.raises(ConfigError, match=r"depth=1\.5"):
    _sample(name, least, depth=1.5)


@pytest.mark.parametrize("name", _NAMES)
def test_a_training_batch_is_cheap(name):
  seconds = []
  for seed in range(9):
    start = time.process_time()
    _sample(name, 64, 32, seed)
    seconds.append(time.process_time() - start)
  assert min(seconds) < 3e-3
