import json

import numpy as np
import pytest

from dape_jax.data import TrainBatches
from dape_jax.data.batches import Windows
from dape_jax.errors import ConfigError

_LENGTH = 64


def _batches(corpus, **changes):
  settings = dict(length=_LENGTH, batch_size=8, seed=3, packing="segments")
  return TrainBatches(corpus.split("validation"), **(settings | changes))


def _assert_equal(left, right):
  assert left.keys() == right.keys()
  for name in left:
    np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def test_shapes_and_dtypes(corpus):
  batch = _batches(corpus)[0]
  assert {k: (v.dtype.name, v.shape) for k, v in batch.items()} == {
      "inputs": ("int32", (8, _LENGTH)),
      "targets": ("int32", (8, _LENGTH)),
      "segment_ids": ("int32", (8, _LENGTH)),
      "positions": ("int32", (8, _LENGTH)),
      "loss_weights": ("float32", (8, _LENGTH)),
  }


def test_a_batch_is_a_function_of_seed_and_step(corpus):
  one = _batches(corpus)
  forward = [one[step] for step in range(6)]
  for step in (5, 2, 4, np.int64(2)):
    _assert_equal(one[step], forward[step])
    _assert_equal(_batches(corpus)[step], forward[step])
  other = _batches(corpus, seed=4)[0]
  assert not np.array_equal(other["inputs"], forward[0]["inputs"])


def test_any_rows_of_a_batch(corpus):
  one = _batches(corpus)
  for step in (0, 7, 10_000):
    together = one[step]
    for rows in ([0], [5, 1], range(1, 8, 2)):
      expected = {k: v[list(rows)] for k, v in together.items()}
      _assert_equal(one.rows(step, rows), expected)


def test_an_epoch_has_every_window_once_and_the_next_another_order(corpus):
  split = corpus.split("validation")
  num_windows = (split.tokens.size - 1) // _LENGTH
  batches = _batches(corpus, batch_size=1)
  epochs = [
      [batches[epoch * num_windows + i]["targets"] for i in range(num_windows)]
      for epoch in range(2)
  ]
  expected = split.tokens[1 : 1 + num_windows * _LENGTH].reshape(-1, _LENGTH)
  order = lambda rows: sorted(row.tobytes() for row in rows)
  for epoch in epochs:
    assert order(np.concatenate(epoch)) == order(expected.astype(np.int32))
  assert not np.array_equal(epochs[0], epochs[1])


def test_a_batch_may_be_larger_than_an_epoch(corpus):
  length = corpus.split("validation").tokens.size - 1
  batch = _batches(corpus, length=length, batch_size=3)[5]
  np.testing.assert_array_equal(batch["inputs"][0], batch["inputs"][2])


def _mixed(corpus, **changes):
  splits = [corpus.split("validation"), corpus.split("test")]
  settings = dict(length=_LENGTH, batch_size=10, seed=3, weights=(7.0, 3.0))
  return TrainBatches(splits, **(settings | changes))


def test_a_mix_has_rows_of_each_split_in_its_own_order(corpus):
  steps = 12
  rows = np.concatenate([_mixed(corpus)[i]["targets"] for i in range(steps)])
  parts = [
      TrainBatches(corpus.split(name), length=_LENGTH, batch_size=1, seed=3)
      for name in ("validation", "test")
  ]
  own = [[part[i]["targets"][0] for i in range(120)] for part in parts]
  counts = [0, 0]
  for number, row in enumerate(rows):
    (which,) = (i for i in (0, 1) if np.array_equal(row, own[i][counts[i]]))
    counts[which] += 1
    # As even as can be, not by chance.
    assert abs(counts[0] - 0.7 * (number + 1)) < 1
  assert counts == [84, 36]


def test_a_mix_is_a_function_of_seed_step_and_row(corpus):
  batches = _mixed(corpus)
  for step in (9, 0, 10_000):
    together = batches[step]
    _assert_equal(_mixed(corpus)[step], together)
    for rows in ([9], [4, 1], range(1, 10, 2)):
      expected = {k: v[list(rows)] for k, v in together.items()}
      _assert_equal(batches.rows(step, rows), expected)
  # Only proportions count.
  _assert_equal(_mixed(corpus, weights=(70, 30))[3], batches[3])


def test_the_state_of_a_mix_has_all_fingerprints_and_weights(corpus):
  batches = _mixed(corpus)
  state = json.loads(json.dumps(batches.data_state(2)))
  assert state["fingerprint"] == f"{corpus.fingerprint},{corpus.fingerprint}"
  assert state["weights"] == [7.0, 3.0]
  batches.check_state(state)
  with pytest.raises(ConfigError, match=r"config\.data\.weights"):
    _mixed(corpus, weights=(1.0, 1.0)).check_state(state)
  with pytest.raises(ConfigError, match="fingerprint"):
    _batches(corpus, batch_size=10).check_state(state)
  del state["weights"]
  with pytest.raises(ConfigError, match="'weights'"):
    batches.check_state(state)
  windows = [len(_windows(corpus, name)) for name in ("validation", "test")]
  # Before the shorter split comes again.
  shorter = min(windows[0] / 0.7, windows[1] / 0.3)
  assert shorter - 2 < batches.num_windows <= shorter


def _windows(corpus, name):
  return Windows(corpus.split(name), _LENGTH, "segments")


def test_state_survives_json_and_is_checked(corpus):
  batches = _batches(corpus)
  state = json.loads(json.dumps(batches.data_state(12)))
  assert state == {
      "seed": 3,
      "step": 12,
      "batch_size": 8,
      "length": _LENGTH,
      "packing": "segments",
      "fingerprint": corpus.fingerprint,
  }
  batches.check_state(state)
  for change, field in (
      ({"seed": 4}, "config.seed"),
      ({"batch_size": 4}, "config.train.batch_size"),
      ({"length": 32}, "config.data.length"),
      ({"packing": "plain"}, "config.data.packing"),
  ):
    with pytest.raises(ConfigError, match=field):
      _batches(corpus, **change).check_state(state)
  with pytest.raises(ConfigError, match="fingerprint"):
    batches.check_state(state | {"fingerprint": "0" * 16})
  del state["length"]
  with pytest.raises(ConfigError, match="'length'"):
    batches.check_state(state)


def test_settings_are_checked(corpus):
  for change, message in (
      ({"batch_size": 0}, "config.train.batch_size=0"),
      ({"length": 10**9}, "config.data.length"),
      ({"packing": "dense"}, "config.data.packing"),
      ({"seed": 2**32}, "config.seed"),
      ({"seed": -1}, "config.seed"),
  ):
    with pytest.raises(ConfigError, match=message):
      _batches(corpus, **change)
  with pytest.raises(IndexError):
    _batches(corpus)[-1]
