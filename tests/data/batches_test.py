"""Batches of text, of a mix of corpora and of generated tasks, by step."""

import json

import numpy as np
import pytest

from dape_jax.data import TaskBatches, TrainBatches
from dape_jax.data.batches import Windows
from dape_jax.errors import ConfigError

_LENGTH = 64


def _text(corpus, **changes):
  settings = dict(length=_LENGTH, batch_size=10, seed=3, packing="segments")
  return TrainBatches(corpus.split("validation"), **(settings | changes))


def _mix(corpus, **changes):
  splits = [corpus.split("validation"), corpus.split("test")]
  settings = dict(length=_LENGTH, batch_size=10, seed=3, weights=(7.0, 3.0))
  return TrainBatches(splits, **(settings | changes))


def _task(corpus, task="copy", **changes):
  del corpus
  settings = dict(length=6, batch_size=10, seed=3, lengths_per_batch=5)
  return TaskBatches(task, **(settings | changes))


_every_kind = pytest.mark.parametrize("make", [_text, _mix, _task])


def _assert_equal(left, right):
  assert left.keys() == right.keys()
  for name in left:
    np.testing.assert_array_equal(left[name], right[name], err_msg=name)


@_every_kind
def test_shapes_and_dtypes(corpus, make):
  batches = make(corpus)
  shape = (10, batches.row_length)
  assert {k: (v.dtype.name, v.shape) for k, v in batches[0].items()} == {
      "inputs": ("int32", shape),
      "targets": ("int32", shape),
      "segment_ids": ("int32", shape),
      "positions": ("int32", shape),
      "loss_weights": ("float32", shape),
  }


@_every_kind
def test_rows_are_a_function_of_seed_step_and_row(corpus, make):
  one = make(corpus)
  forward = {step: one[step] for step in (0, 1, 2, 5, 10_000)}
  assert len({batch["inputs"].tobytes() for batch in forward.values()}) == 5
  for step in (5, 10_000, np.int64(2)):
    together = forward[step]
    _assert_equal(one[step], together)
    _assert_equal(make(corpus)[step], together)
    for rows in ([9], [4, 1], range(1, 10, 2)):
      expected = {k: v[list(rows)] for k, v in together.items()}
      _assert_equal(one.rows(step, rows), expected)
  other = make(corpus, seed=4)[0]
  assert not np.array_equal(other["inputs"], forward[0]["inputs"])
  with pytest.raises(IndexError):
    one[-1]


@pytest.mark.parametrize(
    "make, change, field",
    [
        (_text, {"seed": 4}, "config.seed is 4 but 3"),
        (_text, {"batch_size": 4}, "config.train.batch_size is 4 but 10"),
        (_text, {"length": 32}, "config.data.length"),
        (_text, {"packing": "plain"}, "config.data.packing"),
        (_mix, {"weights": (1.0, 1.0)}, "config.data.weights"),
        (_task, {"seed": 4}, "config.seed is 4 but 3"),
        (_task, {"batch_size": 5}, "config.train.batch_size is 5 but 10"),
        (_task, {"length": 5}, "config.data.length is 5 but 6"),
        (_task, {"task": "mqar"}, "config.data.task is 'mqar' but 'copy'"),
        (_task, {"lengths_per_batch": 2}, "lengths_per_batch is 2 but 5"),
    ],
)
def test_other_settings_do_not_continue_a_run(corpus, make, change, field):
  state = json.loads(json.dumps(make(corpus).data_state(12)))
  make(corpus).check_state(state)
  with pytest.raises(ConfigError, match=field):
    make(corpus, **change).check_state(state)


@_every_kind
def test_missing_state_is_refused(corpus, make):
  batches = make(corpus)
  for name in batches.data_state(12).keys() - {"step"}:
    state = batches.data_state(np.int64(12))
    del state[name]
    with pytest.raises(ConfigError, match=f"has no '{name}'"):
      batches.check_state(state)


def test_state(corpus):
  text = {
      "step": 12,
      "seed": 3,
      "batch_size": 10,
      "length": _LENGTH,
      "packing": "segments",
      "fingerprint": corpus.fingerprint,
  }
  both = f"{corpus.fingerprint},{corpus.fingerprint}"
  mix = text | {"fingerprint": both, "weights": [7.0, 3.0]}
  task = {"step": 12, "seed": 3, "batch_size": 10, "length": 6}
  task |= {"lengths_per_batch": 5, "task": "copy"}
  for make, expected in ((_text, text), (_mix, mix), (_task, task)):
    assert make(corpus).data_state(np.int64(12)) == expected
    assert json.loads(json.dumps(expected)) == expected
  for state in (mix, text | {"fingerprint": "0" * 16}):
    with pytest.raises(ConfigError, match="fingerprint"):
      _text(corpus).check_state(state)


@pytest.mark.parametrize(
    "make, change, message",
    [
        (_text, {"batch_size": 0}, "config.train.batch_size=0"),
        (_text, {"length": 10**9}, "config.data.length=.*validation"),
        (_text, {"length": 0}, "config.data.length=0"),
        (_text, {"packing": "segment"}, 'config.data.packing.*"segments"'),
        (_text, {"seed": 2**32}, "config.seed"),
        (_text, {"seed": -1}, "config.seed"),
        (_task, {"batch_size": 0}, "config.train.batch_size=0"),
        (
            _task,
            {"task": "cpoy"},
            "task 'cpoy' is unknown. Did you mean \"copy",
        ),
        (_task, {"lengths_per_batch": 3}, "lengths_per_batch=3: must divide"),
        (_task, {"lengths_per_batch": 0}, "lengths_per_batch=0"),
    ],
)
def test_settings_are_checked(corpus, make, change, message):
  with pytest.raises(ConfigError, match=message):
    make(corpus, **change)


def test_epoch_has_every_window_once_and_the_next_another_order(corpus):
  split = corpus.split("validation")
  num_windows = (split.tokens.size - 1) // _LENGTH
  batches = _text(corpus, batch_size=1)
  epochs = [
      [batches[epoch * num_windows + i]["targets"] for i in range(num_windows)]
      for epoch in range(2)
  ]
  expected = split.tokens[1 : 1 + num_windows * _LENGTH].reshape(-1, _LENGTH)
  order = lambda rows: sorted(row.tobytes() for row in rows)
  for epoch in epochs:
    assert order(np.concatenate(epoch)) == order(expected.astype(np.int32))
  assert not np.array_equal(epochs[0], epochs[1])


def test_batch_may_be_larger_than_an_epoch(corpus):
  length = corpus.split("validation").tokens.size - 1
  batch = _text(corpus, length=length, batch_size=3)[5]
  np.testing.assert_array_equal(batch["inputs"][0], batch["inputs"][2])


def test_mix_interleaves_splits_in_their_own_order(corpus):
  steps = 12
  mix = _mix(corpus)
  rows = np.concatenate([mix[i]["targets"] for i in range(steps)])
  parts = [
      TrainBatches(corpus.split(name), length=_LENGTH, batch_size=1, seed=3)
      for name in ("validation", "test")
  ]
  own = [[part[i]["targets"][0] for i in range(120)] for part in parts]
  counts = [0, 0]
  for number, row in enumerate(rows):
    (which,) = (i for i in (0, 1) if np.array_equal(row, own[i][counts[i]]))
    counts[which] += 1
    # Evenly, not by chance.
    assert abs(counts[0] - 0.7 * (number + 1)) < 1
  assert counts == [84, 36]
  # Only proportions count.
  _assert_equal(_mix(corpus, weights=(70, 30))[3], mix[3])


def test_mix_ends_its_epoch_before_a_split_repeats(corpus):
  sizes = [
      len(Windows(corpus.split(name), _LENGTH, "segments"))
      for name in ("validation", "test")
  ]
  shorter = min(sizes[0] / 0.7, sizes[1] / 0.3)
  assert shorter - 2 < _mix(corpus).num_windows <= shorter
