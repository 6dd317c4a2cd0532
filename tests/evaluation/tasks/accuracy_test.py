"""Accuracy of models with known answers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dape_jax.data import tasks
from dape_jax.errors import ConfigError
from dape_jax.evaluation.tasks.accuracy import mean_accuracy, task_accuracy


class Known:
  """A model whose answers are a function of its inputs."""

  def __init__(self, answers):
    self.answers = answers

  def apply(self, variables, tokens, segment_ids, positions):
    assert variables == {"params": {}}
    assert tokens.shape == segment_ids.shape == positions.shape
    return jax.nn.one_hot(self.answers(tokens, segment_ids, positions), 9)


def accuracy(answers, task="copy", lengths=(3, 7, 12), **settings):
  settings = dict(samples=16, batch_size=5) | settings
  return task_accuracy(Known(answers), {}, task, lengths, **settings)


def copier(tokens, segment_ids, positions):
  """Answers copy: the token at the same place of the string."""
  separator = jnp.argmax(tokens == 8, axis=1, keepdims=True)
  return jnp.take_along_axis(tokens, jnp.maximum(positions - separator, 0), 1)


def reverser(tokens, segment_ids, positions):
  """Answers reverse_string, at placeholders."""
  length = jnp.sum(segment_ids, axis=1, keepdims=True) // 2
  places = jnp.clip(2 * length - 1 - positions, 0)
  return jnp.take_along_axis(tokens, places, 1)


@pytest.mark.parametrize("batch_size", [1, 5, 99])
@pytest.mark.parametrize(
    "task, answers", [("copy", copier), ("reverse_string", reverser)]
)
def test_perfect_model_at_any_batch_size(task, answers, batch_size):
  rows = accuracy(answers, task, batch_size=batch_size)
  assert rows == [
      {
          "length": length,
          "samples": 16,
          "answers": 16 * length,
          "accuracy": 1.0,
          "exact_match": 1.0,
      }
      for length in (3, 7, 12)
  ]


def test_scores_depend_on_neither_batch_size_nor_other_lengths():
  # Wrong where the answer is 0; rows differ, so a shifted row would show.
  answers = lambda *args: jnp.maximum(copier(*args), 1)
  first, *others = (accuracy(answers, batch_size=n) for n in (16, 1, 5, 11))
  assert all(rows == first for rows in others)
  for row, length in zip(first, (3, 7, 12)):
    assert accuracy(answers, lengths=[length]) == [row]
    rng = np.random.default_rng([2**32 + 1, length])
    right = tasks.make("copy").sample(rng, length, 16).tokens[:, :length] != 0
    assert row["accuracy"] == right.mean()
    assert row["exact_match"] == right.all(axis=1).mean()
    assert 0 < row["exact_match"] < row["accuracy"] < 1


@pytest.mark.parametrize("task", ["parity_check", "copy", "flip_flop"])
def test_constant_answer_has_chance_accuracy(task):
  constant = lambda tokens, *_: jnp.zeros_like(tokens)
  chance = tasks.make(task).chance
  for row in accuracy(
      constant, task, lengths=[20, 40], samples=400, batch_size=400
  ):
    # Four standard deviations of independent problems, each of a few answers.
    assert abs(row["accuracy"] - chance) < 4 * (chance / 400) ** 0.5


class Handmade(tasks.Task):
  """Rows 0, 1, 2, ... with the place as the answer."""

  vocab_size = 9
  num_outputs = 9
  chance = 0

  def row_length(self, length):
    return length

  def sample(self, rng, length, batch_size):
    scored = np.ones((batch_size, length), bool)
    if scored.shape == (3, 4):
      scored = np.array([[1, 1, 1, 1], [0, 0, 0, 1], [0, 1, 1, 0]], bool)
    places = np.broadcast_to(np.arange(length, dtype=np.int32), scored.shape)
    return tasks.Examples(places % 9, places % 9, ~scored, scored)


@pytest.fixture
def handmade(monkeypatch):
  monkeypatch.setitem(tasks.TASKS, "handmade", Handmade())


def test_answers_are_weighted_by_place(handmade):
  # Wrong at place 3: 3 of 4, 0 of 1 and 2 of 2 answers are right.
  answers = lambda tokens, *_: jnp.minimum(tokens, 2)
  (row,) = accuracy(answers, "handmade", [4], samples=3, batch_size=2)
  assert row["answers"] == 7
  assert row["accuracy"] == 5 / 7
  assert row["exact_match"] == 1 / 3


def test_positions_are_randomized(handmade):
  score = lambda answers, **settings: accuracy(
      answers,
      "handmade",
      [8, 5],
      **dict(samples=200, batch_size=64, max_position=100) | settings,
  )
  position = lambda tokens, _, positions: positions % 9
  for row in score(position, max_position=0):
    assert row["accuracy"] == 1
  for row in score(position):
    assert 0.05 < row["accuracy"] < 0.2
  assert score(position, batch_size=7) == score(position)
  # As many positions as places leave no choice.
  assert score(position, max_position=8)[0]["accuracy"] == 1

  def in_order(tokens, segment_ids, positions):
    later = positions[:, 1:] > positions[:, :-1]
    fits = later & (positions[:, 1:] < 100)
    used = segment_ids[:, 1:] == 1
    fits = jnp.all(fits | ~used, axis=1, keepdims=True)
    return jnp.where(fits, tokens, 8)

  for row in score(in_order):
    assert row["accuracy"] == 1


def test_impossible_lengths_are_rejected():
  accuracy(copier, lengths=[8], max_position=16)
  with pytest.raises(
      ConfigError,
      match=r"--lengths: rows of 18 tokens, but config.train.max_position=16",
  ):
    accuracy(copier, lengths=[8, 9], max_position=16)
  with pytest.raises(ConfigError, match="length=3 is too short"):
    accuracy(copier, "passkey", lengths=[64, 3])


def test_mean_accuracy_is_over_lengths_beyond_training():
  rows = [
      {"length": length, "accuracy": value}
      for length, value in ((40, 1.0), (41, 0.5), (100, 0.7))
  ]
  assert mean_accuracy(rows, 40) == pytest.approx(0.6)
  assert math.isnan(mean_accuracy(rows, 100))
