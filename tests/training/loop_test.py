"""Interrupting, resuming, refusing and stopping a run, in one process."""

import json
import os
import pathlib
import shutil
import signal

import jax
import numpy as np
import pytest

from dape_jax import locking
from dape_jax.checkpoint import store as checkpoint
from dape_jax.config.dicts import experiment_from_dict
from dape_jax.errors import ConfigError
from dape_jax.training import batches, loop


class _InterruptedError(Exception):
  pass


@pytest.fixture(autouse=True)
def _tiny_corpus(tiny_corpus, monkeypatch):
  monkeypatch.setattr(batches, "load_corpora", lambda **_: [tiny_corpus])


@pytest.fixture
def train_until(monkeypatch):
  """Returns a function: train, interrupted when a step asks for its batch."""
  train_batches = batches.TrainBatches

  def train(config, workdir, step):
    class Interrupted(train_batches):

      def rows(self, index, rows):
        if index == step:
          raise _InterruptedError
        return super().rows(index, rows)

    with monkeypatch.context() as patch:
      patch.setattr(batches, "TrainBatches", Interrupted)
      with pytest.raises(_InterruptedError):
        loop.train(config, workdir)

  return train


@pytest.fixture(scope="module")
def whole(make_config, tiny_corpus, tmp_path_factory):
  """The workdir of an uninterrupted run; tests that change it take a copy."""
  workdir = tmp_path_factory.mktemp("whole")
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(batches, "load_corpora", lambda **_: [tiny_corpus])
    loop.train(make_config(), workdir)
  return workdir


@pytest.fixture
def finished(whole, tmp_path):
  return pathlib.Path(shutil.copytree(whole, tmp_path / "finished"))


def test_resuming_twice_across_epochs_is_bit_identical(
    make_config, whole, train_until, read_results, tmp_path
):
  # An epoch is 41 windows, 5 batches and a bit.
  config = make_config()
  train_until(config, tmp_path, 13)
  train_until(config, tmp_path, 27)
  loop.train(config, tmp_path)

  results = read_results(whole)
  assert read_results(tmp_path) == results
  assert [r["step"] for r in results if "loss" in r] == list(range(1, 41))
  assert [r["step"] for r in results if "validation_loss" in r] == [20, 40]
  assert results[-1]["validation_loss"] < results[0]["loss"] - 1
  _, params, step = checkpoint.load_for_evaluation(tmp_path)
  assert step == 40
  expected = checkpoint.load_for_evaluation(whole)[1]
  jax.tree.map(np.testing.assert_array_equal, params, expected)


def test_sigterm_saves_and_the_run_goes_on(
    make_config, whole, monkeypatch, read_results, tmp_path, capsys
):
  config = make_config()
  train_batches = batches.TrainBatches

  class Terminated(train_batches):

    def rows(self, step, rows):
      if step == 12:
        os.kill(os.getpid(), signal.SIGTERM)
      return super().rows(step, rows)

  before = signal.getsignal(signal.SIGTERM)
  with monkeypatch.context() as patch:
    patch.setattr(batches, "TrainBatches", Terminated)
    loop.train(config, tmp_path, profile_steps=(2, 3))
  assert signal.getsignal(signal.SIGTERM) == before
  assert "stopped by SIGTERM after step 13 of 40" in capsys.readouterr().err
  assert list((tmp_path / "profile").rglob("*.xplane.pb"))
  loop.train(config, tmp_path)
  assert "going on from" in capsys.readouterr().err
  assert read_results(tmp_path) == read_results(whole)


def _truncate(file):
  content = file.read_bytes()
  file.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("damage", [_truncate, pathlib.Path.unlink])
def test_a_damaged_checkpoint_is_told_and_skipped_if_asked(
    make_config, whole, finished, read_results, capsys, damage
):
  params = finished / "checkpoints" / "40" / "params"
  for file in [file for file in params.rglob("*") if file.is_file()]:
    damage(file)
  with pytest.raises(ConfigError, match=r"checkpoints/40 is dam.*skip_damaged"):
    loop.train(make_config(), finished)
  # Another config is no damage.
  with pytest.raises(ConfigError, match=r"config.model.width=64 but"):
    loop.train(make_config({"model.width": 64}), finished, skip_damaged=True)
  loop.train(make_config(), finished, skip_damaged=True)
  shown = capsys.readouterr().err
  assert "warning: checkpoint" in shown
  assert "damaged_checkpoints/40_0; looking for the one before" in shown
  assert (finished / "damaged_checkpoints" / "40_0" / "params").is_dir()
  assert read_results(finished) == read_results(whole)


def test_a_run_without_a_whole_checkpoint_says_that_it_starts_anew(
    make_config, tmp_path, read_results, capsys
):
  config = make_config({"train.steps": 3, "train.eval_every": 0})
  loop.train(config, tmp_path)
  assert "starting anew" not in capsys.readouterr().err
  results = read_results(tmp_path)
  shutil.rmtree(tmp_path / "checkpoints" / "3" / "params")
  loop.train(config, tmp_path, skip_damaged=True)
  assert "is whole: starting anew" in capsys.readouterr().err
  assert read_results(tmp_path) == results


def test_a_step_of_which_nothing_is_left_is_damaged(
    make_config, whole, finished, read_results
):
  for item in (finished / "checkpoints" / "40").iterdir():
    shutil.rmtree(item) if item.is_dir() else item.unlink()
  with pytest.raises(ConfigError, match="checkpoints/40 is damaged"):
    loop.train(make_config(), finished)
  loop.train(make_config(), finished, skip_damaged=True)
  assert read_results(finished) == read_results(whole)


def test_a_second_run_in_a_workdir_is_refused(make_config, tmp_path):
  with (
      locking.locked(tmp_path / "lock", ""),
      pytest.raises(ConfigError, match="another process trains in it"),
  ):
    loop.train(make_config(), tmp_path)
  assert not (tmp_path / "checkpoints").exists()


def test_steps_to_profile_that_a_run_does_not_make_are_refused(
    make_config, tmp_path
):
  config = make_config({"train.steps": 3, "train.eval_every": 0})
  message = "profile_steps=2,5: this run makes the steps 1 to 3"
  with pytest.raises(ConfigError, match=message):
    loop.train(config, tmp_path, profile_steps=(2, 5))


def test_sigterm_while_the_last_state_is_written_loses_nothing(
    make_config, monkeypatch, tmp_path
):
  config = make_config({"train.steps": 3, "train.eval_every": 0})
  wait = loop.CheckpointSaver.wait

  def terminated(self):
    monkeypatch.setattr(loop.CheckpointSaver, "wait", wait)
    os.kill(os.getpid(), signal.SIGTERM)
    return self.wait()

  monkeypatch.setattr(loop.CheckpointSaver, "wait", terminated)
  loop.train(config, tmp_path)
  assert checkpoint.load_for_evaluation(tmp_path)[2] == 3


def test_a_run_whose_last_state_is_lost_says_so(
    make_config, monkeypatch, tmp_path
):
  monkeypatch.setattr(loop.CheckpointSaver, "wait", lambda self: False)
  config = make_config({"train.steps": 3, "train.eval_every": 0})
  with pytest.raises(loop.FailedRunError, match="after step 3 could not be"):
    loop.train(config, tmp_path)


def test_resuming_on_another_number_of_devices_is_the_same_to_tolerance(
    make_config,
    make_mesh,
    whole,
    train_until,
    read_results,
    tmp_path,
    monkeypatch,
):
  config = make_config()
  train_until(config, tmp_path, 35)  # On eight; goes on from step 30 on one.
  one = make_mesh(1)
  monkeypatch.setattr(loop.partitioning, "make_mesh", lambda _: one)
  loop.train(config, tmp_path)
  for record, expected in zip(
      read_results(tmp_path), read_results(whole), strict=True
  ):
    assert record == pytest.approx(expected, rel=1e-4)


def test_a_finished_run_says_so_and_changes_nothing(
    make_config, finished, capsys
):
  before = (finished / "metrics.jsonl").read_bytes()
  loop.train(make_config(), finished)
  assert "already finished, 40 of 40 steps" in capsys.readouterr().err
  assert (finished / "metrics.jsonl").read_bytes() == before
  stored = json.loads((finished / "config.json").read_text())
  assert experiment_from_dict(stored) == make_config()


def test_the_loop_refuses_another_config(finished, make_config):
  before = (finished / "config.json").read_bytes()
  with pytest.raises(ConfigError, match=r"config\.train\.steps=41 .* with 40;"):
    loop.train(make_config({"train.steps": 41}), finished)
  assert (finished / "config.json").read_bytes() == before


def test_another_corpus_is_refused(
    finished, make_config, make_corpus, monkeypatch, tmp_path
):
  other = make_corpus(tmp_path / "data", seed=1)
  monkeypatch.setattr(batches, "load_corpora", lambda **_: [other])
  with pytest.raises(ConfigError, match="fingerprint"):
    loop.train(make_config(), finished)


def test_too_small_a_vocabulary_is_refused(make_config, tmp_path):
  config = make_config({"model.vocab_size": 256})
  with pytest.raises(ConfigError, match=r"model\.vocab_size=256.*259.*384"):
    loop.train(config, tmp_path)


def test_a_batch_that_does_not_split_is_refused(make_config, tmp_path):
  config = make_config({"train.batch_size": 12})
  with pytest.raises(ConfigError, match=r"train\.batch_size=12.*multiple of 8"):
    loop.train(config, tmp_path)


def test_a_workdir_that_cannot_be_written_is_told(make_config, tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(ConfigError, match=r"--workdir=.*file/run cannot be"):
    loop.train(make_config(), tmp_path / "file" / "run")


def test_a_damaged_checkpoint_is_told(finished, make_config):
  metadata = finished / "checkpoints" / "40" / "metadata" / "data.json"
  metadata.write_text(metadata.read_text()[:50])
  with pytest.raises(ConfigError, match=r"checkpoints/40 is damaged"):
    loop.train(make_config(), finished)
