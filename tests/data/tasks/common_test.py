"""Properties of every generated task."""

import time

import numpy as np
import pytest

from dape_jax.data import tasks
from dape_jax.data.tasks import needle, recall
from dape_jax.errors import ConfigError

_FIELDS = dict(tokens=np.int32, targets=np.int32, trained=bool, scored=bool)
_NEXT_TOKEN_TASKS = recall.TASKS | needle.TASKS


def _sample(name, length, batch_size=64, seed=0):
  return tasks.make(name).sample(
      np.random.default_rng(seed), length, batch_size
  )


@pytest.mark.parametrize("extra", [0, 7, 8, 39, 459])
@pytest.mark.parametrize("name", tasks.TASKS)
def test_shapes_dtypes_and_ids(name, extra):
  task = tasks.make(name)
  length = task.min_length + extra
  examples = _sample(name, length)
  shape = (64, task.row_length(length))
  for field, dtype in _FIELDS.items():
    assert getattr(examples, field).shape == shape
    assert getattr(examples, field).dtype == dtype
  assert 0 <= examples.tokens.min() <= examples.tokens.max() < task.vocab_size
  targets = examples.targets[examples.trained]
  assert 0 <= targets.min() <= targets.max() < task.num_outputs
  assert not (examples.scored & ~examples.trained).any()
  assert examples.scored.any(axis=1).all()


@pytest.mark.parametrize("extra", [0, 1, 2, 60])
@pytest.mark.parametrize("name", tasks.TASKS)
def test_seed_determines_the_problems(name, extra):
  length = tasks.make(name).min_length + extra
  first, again, other = (_sample(name, length, 32, s) for s in (0, 0, 1))
  for field in _FIELDS:
    np.testing.assert_array_equal(getattr(first, field), getattr(again, field))
  assert extra < 60 or (first.tokens != other.tokens).any()


@pytest.mark.parametrize("name", _NEXT_TOKEN_TASKS)
def test_every_length_from_the_smallest_works(name):
  task = tasks.make(name)
  for length in range(task.min_length, task.min_length + 40):
    assert _sample(name, length, 2).tokens.shape[1] == task.row_length(length)
  with pytest.raises(
      ConfigError, match=f"{name}; use at least {task.min_length}"
  ):
    _sample(name, task.min_length - 1)


@pytest.mark.parametrize("name", _NEXT_TOKEN_TASKS)
def test_constant_answers_score_chance(name):
  task = tasks.make(name)
  examples = _sample(name, 128, 4096)
  targets = examples.targets[examples.scored]
  counts = np.bincount(targets, minlength=task.num_outputs)
  # Five standard deviations of the mean of that many coin tosses.
  allowed = 5 * np.sqrt(task.chance / targets.size)
  np.testing.assert_allclose(counts / targets.size, task.chance, atol=allowed)


@pytest.mark.parametrize("name", _NEXT_TOKEN_TASKS)
def test_training_batch_is_cheap(name):
  seconds = []
  for seed in range(9):
    start = time.process_time()
    _sample(name, 64, 32, seed)
    seconds.append(time.process_time() - start)
  assert min(seconds) < 3e-3
