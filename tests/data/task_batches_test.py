"""Batches of tasks: addressed by step, of one shape, whole over processes."""

import json

import numpy as np
import pytest

from dape_jax.config.dicts import experiment_from_dict
from dape_jax.data import TaskBatches, tasks
from dape_jax.data.task_batches import padded_rows
from dape_jax.errors import ConfigError
from dape_jax.training.run import make_batches


def batches(task="copy", **changes):
  return TaskBatches(task, **dict(length=6, batch_size=8, seed=3) | changes)


def assert_equal(left, right):
  assert left.keys() == right.keys()
  for name in left:
    np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def lengths(batch):
  """Returns the length of each row's problem, of copy."""
  return batch["segment_ids"].sum(axis=1) // 2


@pytest.mark.parametrize("task", tasks.TASKS)
def test_all_batches_have_one_shape(task):
  length = tasks.make(task).min_length + 5
  row_length = tasks.make(task).row_length(length)
  # So many lengths that the longest is hardly ever drawn.
  for step in range(3):
    batch = batches(task, length=length, lengths_per_batch=4)[step]
    assert {k: (v.dtype.name, v.shape) for k, v in batch.items()} == {
        "inputs": ("int32", (8, row_length)),
        "targets": ("int32", (8, row_length)),
        "segment_ids": ("int32", (8, row_length)),
        "positions": ("int32", (8, row_length)),
        "loss_weights": ("float32", (8, row_length)),
    }
    used = batch["segment_ids"] == 1
    assert used.any(axis=1).all()
    # Padding stands at the end, and is nothing.
    assert (np.diff(batch["segment_ids"], axis=1) <= 0).all()
    for name in ("inputs", "targets", "positions", "loss_weights"):
      assert not batch[name][~used].any()
    assert (batch["loss_weights"].max(axis=1) == 1).all()
    places = np.broadcast_to(np.arange(row_length), used.shape)
    np.testing.assert_array_equal(batch["positions"][used], places[used])


def test_padded_rows_by_hand():
  examples = tasks.Examples(
      tokens=np.int32([[5, 6]]),
      targets=np.int32([[7, 8]]),
      trained=np.array([[False, True]]),
      scored=np.array([[True, False]]),
  )
  assert_equal(
      padded_rows(examples, 4),
      {
          "inputs": [[5, 6, 0, 0]],
          "targets": [[7, 8, 0, 0]],
          "segment_ids": [[1, 1, 0, 0]],
          "positions": [[0, 1, 0, 0]],
          "loss_weights": [[0, 1, 0, 0]],
      },
  )


def test_a_batch_is_a_function_of_seed_and_step():
  one = batches()
  forward = [one[step] for step in range(6)]
  for step in (5, 2, 4, np.int64(2)):
    assert_equal(one[step], forward[step])
    assert_equal(batches()[step], forward[step])
  distinct = {batch["inputs"].tobytes() for batch in forward}
  distinct.add(batches(seed=4)[0]["inputs"].tobytes())
  assert len(distinct) == 7


def test_lengths_are_uniform_from_the_shortest_to_the_longest():
  task = batches("induction", length=8)  # of at least 3
  used = [task[step]["segment_ids"].sum(axis=1) for step in range(1200)]
  assert all(len(set(rows)) == 1 for rows in used)
  values, counts = np.unique([rows[0] for rows in used], return_counts=True)
  assert values.tolist() == [3, 4, 5, 6, 7, 8]
  # Four standard deviations of a count.
  assert abs(counts - 200).max() < 4 * (1200 * 1 / 6 * 5 / 6) ** 0.5


def test_a_batch_may_have_several_lengths():
  task = batches(length=30, lengths_per_batch=4)
  seen = np.concatenate([lengths(task[step]) for step in range(50)])
  parts = seen.reshape(-1, 2)  # 8 rows, 4 lengths
  np.testing.assert_array_equal(parts[:, 0], parts[:, 1])
  assert len(set(parts[:, 0])) > 25
  assert (np.ptp(parts.reshape(50, 4, 2), axis=1) > 0).any()
  with pytest.raises(ConfigError, match="lengths_per_batch=3: must divide"):
    batches(lengths_per_batch=3)
  with pytest.raises(ConfigError, match="lengths_per_batch=0"):
    batches(lengths_per_batch=0)


def test_any_rows_of_a_batch():
  one = batches(lengths_per_batch=4)
  for step in (0, 7, 10_000):
    together = one[step]
    for rows in ([0], [5, 1], range(1, 8, 2)):
      expected = {k: v[list(rows)] for k, v in together.items()}
      assert_equal(one.rows(step, rows), expected)


def test_settings_are_checked():
  for changes, message in (
      ({"task": "cpoy"}, "task 'cpoy' is unknown. Did you mean \"copy\""),
      ({"batch_size": 0}, "config.train.batch_size=0"),
  ):
    with pytest.raises(ConfigError, match=message):
      batches(**changes)
  with pytest.raises(IndexError):
    batches()[-1]


def test_state_survives_json_and_is_checked():
  state = json.loads(json.dumps(batches().data_state(np.int64(12))))
  assert state == {
      "step": 12,
      "seed": 3,
      "batch_size": 8,
      "length": 6,
      "lengths_per_batch": 1,
      "task": "copy",
  }
  batches().check_state(state)
  for change, field in (
      ({"seed": 4}, "config.seed is 4 but 3"),
      ({"batch_size": 4}, "config.train.batch_size is 4 but 8"),
      ({"length": 5}, "config.data.length is 5 but 6"),
      ({"task": "mqar"}, "config.data.task is 'mqar' but 'copy'"),
      ({"lengths_per_batch": 2}, "config.data.lengths_per_batch is 2 but 1"),
  ):
    with pytest.raises(ConfigError, match=field):
      batches(**change).check_state(state)
  del state["task"]
  with pytest.raises(ConfigError, match="has no 'task'"):
    batches().check_state(state)


def experiment(seed=0, **model):
  return experiment_from_dict(
      {
          "seed": seed,
          "model": dict(vocab_size=9, num_outputs=8) | model,
          "data": {"task": "copy", "length": 40},
          "train": {"batch_size": 16},
      }
  )


def test_no_run_trains_on_the_problems_of_validation():
  first, second = (make_batches(experiment(seed))[1] for seed in (0, 1))
  assert_equal(first[3], second[3])
  rows = lambda batches: {
      row.tobytes()
      for step in range(8)
      for row in batches[step]["inputs"]
      if (row == 8).argmax() >= 10  # Short strings come again by chance.
  }
  held_out = rows(first)
  assert len(held_out) > 50
  for seed in (0, 1, 2**32 - 1):
    assert not held_out & rows(make_batches(experiment(seed))[0])


def test_a_model_with_too_few_ids_is_refused():
  with pytest.raises(ConfigError, match="vocab_size=8 is less than the 9 of"):
    make_batches(experiment(vocab_size=8))
  with pytest.raises(ConfigError, match="num_outputs=7 is less than the 8 of"):
    make_batches(experiment(num_outputs=7))
  make_batches(experiment(num_outputs=0))
