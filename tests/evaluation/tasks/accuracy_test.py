"""Accuracy, with readers whose answers are known."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dape_jax.data import tasks
from dape_jax.errors import ConfigError
from dape_jax.evaluation.tasks.accuracy import mean_accuracy, task_accuracy


class Reader:
  """A model whose answers are a function of what it reads."""

  def __init__(self, answers):
    self.answers = answers

  def apply(self, variables, tokens, segment_ids, positions):
    assert variables == {"params": {}}
    assert tokens.shape == segment_ids.shape == positions.shape
    return jax.nn.one_hot(self.answers(tokens, segment_ids, positions), 9)


def accuracy(reader, task="copy", lengths=(3, 7, 12), **settings):
  settings = dict(samples=16, batch_size=5) | settings
  return task_accuracy(Reader(reader), {}, task, lengths, **settings)


def copier(tokens, segment_ids, positions):
  """Answers copy: what stands the string's length before."""
  separator = jnp.argmax(tokens == 8, axis=1, keepdims=True)
  return jnp.take_along_axis(tokens, jnp.maximum(positions - separator, 0), 1)


def reverser(tokens, segment_ids, positions):
  """Answers reverse_string, at placeholders."""
  length = jnp.sum(segment_ids, axis=1, keepdims=True) // 2
  places = jnp.clip(2 * length - 1 - positions, 0)
  return jnp.take_along_axis(tokens, places, 1)


@pytest.mark.parametrize("batch_size", [1, 5, 16, 99])
@pytest.mark.parametrize(
    "task, reader", [("copy", copier), ("reverse_string", reverser)]
)
def test_a_perfect_reader_is_right_at_any_batch_size(task, reader, batch_size):
  rows = accuracy(reader, task, batch_size=batch_size)
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


def test_a_reader_that_errs_does_so_at_any_batch_size():
  # Wrong where the answer is 0; rows differ, so a shifted row would show.
  reader = lambda *args: jnp.maximum(copier(*args), 1)
  first, *others = (accuracy(reader, batch_size=n) for n in (16, 1, 5, 11))
  assert all(rows == first for rows in others)
  for row, length in zip(first, (3, 7, 12)):
    rng = np.random.default_rng([2**32 + 1, length])
    right = tasks.make("copy").sample(rng, length, 16).tokens[:, :length] != 0
    assert row["accuracy"] == right.mean()
    assert row["exact_match"] == right.all(axis=1).mean()
    assert 0 < row["exact_match"] < row["accuracy"] < 1


def test_a_length_is_scored_the_same_whatever_the_others_are():
  reader = lambda *args: jnp.maximum(copier(*args), 1)
  rows = accuracy(reader)
  for row in rows:
    assert accuracy(reader, lengths=[row["length"]]) == [row]


@pytest.mark.parametrize("task", ["parity_check", "copy", "flip_flop"])
def test_a_constant_answer_has_chance(task):
  constant = lambda tokens, *_: jnp.zeros_like(tokens)
  chance = tasks.make(task).chance
  for row in accuracy(
      constant, task, lengths=[20, 40], samples=400, batch_size=400
  ):
    # Four standard deviations of independent problems, each of a few answers.
    assert abs(row["accuracy"] - chance) < 4 * (chance / 400) ** 0.5


class Handmade(tasks.Task):
  """Rows 0, 1, 2, ... with the place as the answer, scored at given places."""

  vocab_size = 9
  num_outputs = 9
  chance = 0
  scored = np.array([[1, 1, 1, 1], [0, 0, 0, 1], [0, 1, 1, 0]], bool)

  def row_length(self, length):
    return length

  def sample(self, rng, length, batch_size):
    shape = batch_size, length
    scored = np.ones(shape, bool)
    if shape == self.scored.shape:
      scored = self.scored
    places = np.broadcast_to(np.arange(length, dtype=np.int32), shape)
    return tasks.Examples(places % 9, places % 9, ~scored, scored)


@pytest.fixture
def handmade(monkeypatch):
  monkeypatch.setitem(tasks.TASKS, "handmade", Handmade())


def test_answers_are_weighted_by_place(handmade):
  # Wrong at place 3: 3 of 4, 0 of 1 and 2 of 2 answers are right.
  reader = lambda tokens, *_: jnp.minimum(tokens, 2)
  (row,) = accuracy(reader, "handmade", [4], samples=3, batch_size=2)
  assert row["answers"] == 7
  assert row["accuracy"] == 5 / 7
  assert row["exact_match"] == 1 / 3


def test_positions_are_drawn_at_random(handmade):
  read = lambda reader, **settings: accuracy(
      reader,
      "handmade",
      [8, 5],
      **dict(samples=200, batch_size=64, max_position=100) | settings,
  )
  position = lambda tokens, _, positions: positions % 9
  for row in read(position, max_position=0):
    assert row["accuracy"] == 1
  for row in read(position):
    assert 0.05 < row["accuracy"] < 0.2
  assert read(position, batch_size=7) == read(position)
  # As many as there are places: no choice.
  assert read(position, max_position=8)[0]["accuracy"] == 1

  def in_order(tokens, segment_ids, positions):
    later = positions[:, 1:] > positions[:, :-1]
    fits = later & (positions[:, 1:] < 100)
    used = segment_ids[:, 1:] == 1
    fits = jnp.all(fits | ~used, axis=1, keepdims=True)
    return jnp.where(fits, tokens, 8)

  for row in read(in_order):
    assert row["accuracy"] == 1


def test_lengths_that_cannot_be_read_are_refused():
  accuracy(copier, lengths=[8], max_position=16)
  with pytest.raises(
      ConfigError,
      match=r"--lengths: rows of 18 tokens, but config.train.max_position=16",
  ):
    accuracy(copier, lengths=[8, 9], max_position=16)
  with pytest.raises(ConfigError, match="length=3 is too short"):
    accuracy(copier, "passkey", lengths=[64, 3])


def test_the_papers_score_is_the_mean_over_longer_lengths():
  rows = [
      {"length": length, "accuracy": value}
      for length, value in ((40, 1.0), (41, 0.5), (100, 0.7))
  ]
  assert mean_accuracy(rows, 40) == pytest.approx(0.6)
  assert math.isnan(mean_accuracy(rows, 100))
