"""Batches of generated tasks: padding, lengths, and separate validation."""

import numpy as np
import pytest

from dape_jax.config.dicts import experiment_from_dict
from dape_jax.data import TaskBatches, tasks
from dape_jax.data.task_batches import padded_rows
from dape_jax.errors import ConfigError
from dape_jax.training.run import make_batches


def _batches(task="copy", **changes):
  return TaskBatches(task, **dict(length=6, batch_size=8, seed=3) | changes)


@pytest.mark.parametrize("task", tasks.TASKS)
def test_rows_are_padded_to_one_shape(task):
  length = tasks.make(task).min_length + 5
  row_length = tasks.make(task).row_length(length)
  # With this many lengths the longest is rarely drawn.
  for step in range(3):
    batch = _batches(task, length=length, lengths_per_batch=4)[step]
    assert all(values.shape == (8, row_length) for values in batch.values())
    used = batch["segment_ids"] == 1
    assert used.any(axis=1).all()
    # Padding is zeros at the end.
    assert (np.diff(batch["segment_ids"], axis=1) <= 0).all()
    for values in batch.values():
      assert not values[~used].any()
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
  padded = padded_rows(examples, 4)
  assert {name: values.tolist() for name, values in padded.items()} == {
      "inputs": [[5, 6, 0, 0]],
      "targets": [[7, 8, 0, 0]],
      "segment_ids": [[1, 1, 0, 0]],
      "positions": [[0, 1, 0, 0]],
      "loss_weights": [[0, 1, 0, 0]],
  }


def test_lengths_are_uniform_from_the_shortest_to_the_longest():
  task = _batches("induction", length=8)  # of at least 3
  used = [task[step]["segment_ids"].sum(axis=1) for step in range(1200)]
  assert all(len(set(rows)) == 1 for rows in used)
  values, counts = np.unique([rows[0] for rows in used], return_counts=True)
  assert values.tolist() == [3, 4, 5, 6, 7, 8]
  # Four standard deviations of a count.
  assert abs(counts - 200).max() < 4 * (1200 * 1 / 6 * 5 / 6) ** 0.5


def test_batch_may_have_several_lengths():
  task = _batches(length=30, lengths_per_batch=4)
  lengths = lambda batch: batch["segment_ids"].sum(axis=1) // 2
  seen = np.concatenate([lengths(task[step]) for step in range(50)])
  parts = seen.reshape(-1, 2)  # 8 rows, 4 lengths
  np.testing.assert_array_equal(parts[:, 0], parts[:, 1])
  assert len(set(parts[:, 0])) > 25
  assert (np.ptp(parts.reshape(50, 4, 2), axis=1) > 0).any()


def _experiment(seed=0, **model):
  return experiment_from_dict(
      {
          "seed": seed,
          "model": dict(vocab_size=9, num_outputs=8) | model,
          "data": {"task": "copy", "length": 40},
          "train": {"batch_size": 16},
      }
  )


def test_no_run_trains_on_validation_problems():
  first, second = (make_batches(_experiment(seed))[1] for seed in (0, 1))
  for name, values in first[3].items():
    np.testing.assert_array_equal(values, second[3][name])
  rows = lambda batches: {
      row.tobytes()
      for step in range(8)
      for row in batches[step]["inputs"]
      if (row == 8).argmax() >= 10  # Short strings repeat by chance.
  }
  held_out = rows(first)
  assert len(held_out) > 50
  for seed in (0, 1, 2**32 - 1):
    assert not held_out & rows(make_batches(_experiment(seed))[0])


def test_model_with_too_few_ids_is_refused():
  with pytest.raises(ConfigError, match="vocab_size=8 is less than the 9 of"):
    make_batches(_experiment(vocab_size=8))
  with pytest.raises(ConfigError, match="num_outputs=7 is less than the 8 of"):
    make_batches(_experiment(num_outputs=7))
  make_batches(_experiment(num_outputs=0))
