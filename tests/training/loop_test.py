"""Interrupting, resuming, rejecting and stopping a run, in one process."""

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
from dape_jax.training import loop
from dape_jax.training import run as run_module

_SHORT = {"train.steps": 3, "train.eval_every": 0}


class _InterruptedError(Exception):
  pass


@pytest.fixture(autouse=True)
def _tiny_corpus(tiny_corpus, monkeypatch):
  monkeypatch.setattr(run_module, "load_corpora", lambda **_: [tiny_corpus])


@pytest.fixture
def at_step(monkeypatch):
  """Returns a function that calls another when a step reads its batch."""
  train_batches = run_module.TrainBatches

  def at_step(step, callback):
    class Batches(train_batches):

      def rows(self, index, rows):
        if index == step:
          callback()
        return super().rows(index, rows)

    monkeypatch.setattr(run_module, "TrainBatches", Batches)

  return at_step


@pytest.fixture
def train_until(at_step):
  """Returns a function that trains and raises when a step reads its batch."""

  def interrupt():
    raise _InterruptedError

  def train(config, workdir, step):
    at_step(step, interrupt)
    with pytest.raises(_InterruptedError):
      loop.train(config, workdir)
    at_step(-1, interrupt)

  return train


@pytest.fixture(scope="module")
def uninterrupted(make_config, tiny_corpus, tmp_path_factory):
  """The workdir of an uninterrupted run; copied by tests that change it."""
  workdir = tmp_path_factory.mktemp("uninterrupted")
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(run_module, "load_corpora", lambda **_: [tiny_corpus])
    loop.train(make_config(), workdir)
  return workdir


@pytest.fixture
def finished(uninterrupted, tmp_path):
  return pathlib.Path(shutil.copytree(uninterrupted, tmp_path / "finished"))


def test_resuming_twice_across_epochs_is_bit_identical(
    make_config, uninterrupted, train_until, read_results, tmp_path
):
  # An epoch has 41 windows: 5 batches and one window.
  config = make_config()
  train_until(config, tmp_path, 13)
  train_until(config, tmp_path, 27)
  loop.train(config, tmp_path)

  results = read_results(uninterrupted)
  assert read_results(tmp_path) == results
  assert [r["step"] for r in results if "loss" in r] == list(range(1, 41))
  assert [r["step"] for r in results if "validation_loss" in r] == [20, 40]
  assert results[-1]["validation_loss"] < results[0]["loss"] - 1
  _, params, step = checkpoint.load_for_evaluation(tmp_path)
  assert step == 40
  expected = checkpoint.load_for_evaluation(uninterrupted)[1]
  jax.tree.map(np.testing.assert_array_equal, params, expected)


def test_sigterm_saves_a_checkpoint_to_resume_from(
    make_config, uninterrupted, at_step, read_results, tmp_path, capsys
):
  config = make_config()
  before = signal.getsignal(signal.SIGTERM)
  at_step(12, lambda: os.kill(os.getpid(), signal.SIGTERM))
  loop.train(config, tmp_path, profile_steps=(2, 3))
  assert signal.getsignal(signal.SIGTERM) == before
  assert "stopped by SIGTERM after step 13 of 40" in capsys.readouterr().err
  assert list((tmp_path / "profile").rglob("*.xplane.pb"))
  loop.train(config, tmp_path)
  assert "resuming from" in capsys.readouterr().err
  assert read_results(tmp_path) == read_results(uninterrupted)


def _remove(path):
  shutil.rmtree(path) if path.is_dir() else path.unlink()


def _truncate_params(step):
  for file in (step / "params").rglob("*"):
    if file.is_file():
      content = file.read_bytes()
      file.write_bytes(content[: len(content) // 2])


def _remove_params(step):
  for file in (step / "params").rglob("*"):
    if file.is_file():
      file.unlink()


def _remove_everything(step):
  for item in step.iterdir():
    _remove(item)


def _truncate_metadata(step):
  file = step / "metadata" / "data.json"
  file.write_text(file.read_text()[:50])


@pytest.mark.parametrize(
    "damage",
    [_truncate_params, _remove_params, _remove_everything, _truncate_metadata],
)
def test_damaged_checkpoint_is_reported_and_skipped_on_request(
    make_config, uninterrupted, finished, read_results, capsys, damage
):
  damage(finished / "checkpoints" / "40")
  config = make_config()
  with pytest.raises(ConfigError, match=r"checkpoints/40 is dam.*skip_damaged"):
    loop.train(config, finished)
  loop.train(config, finished, skip_damaged=True)
  shown = capsys.readouterr().err
  assert "warning: checkpoint" in shown
  assert "damaged_checkpoints/40_0; trying the previous checkpoint" in shown
  assert (finished / "damaged_checkpoints" / "40_0").is_dir()
  assert read_results(finished) == read_results(uninterrupted)


def test_run_without_an_intact_checkpoint_starts_from_scratch(
    make_config, tmp_path, read_results, capsys
):
  config = make_config(_SHORT)
  loop.train(config, tmp_path)
  assert "starting from scratch" not in capsys.readouterr().err
  results = read_results(tmp_path)
  shutil.rmtree(tmp_path / "checkpoints" / "3" / "params")
  loop.train(config, tmp_path, skip_damaged=True)
  assert "is intact: starting from scratch" in capsys.readouterr().err
  assert read_results(tmp_path) == results


# parallel/processes_test resumes on another mesh, too.
@pytest.mark.soak
def test_resuming_on_fewer_devices_is_equal_to_tolerance(
    make_config,
    make_mesh,
    uninterrupted,
    train_until,
    read_results,
    tmp_path,
    monkeypatch,
):
  config = make_config()
  train_until(config, tmp_path, 35)  # On eight; resumes from step 30 on one.
  one = make_mesh(1)
  monkeypatch.setattr(loop.partitioning, "make_mesh", lambda _: one)
  loop.train(config, tmp_path)
  for record, expected in zip(
      read_results(tmp_path), read_results(uninterrupted), strict=True
  ):
    assert record == pytest.approx(expected, rel=1e-4)


def test_finished_run_is_reported_and_unchanged(make_config, finished, capsys):
  before = (finished / "metrics.jsonl").read_bytes()
  loop.train(make_config(), finished)
  assert "already finished, 40 of 40 steps" in capsys.readouterr().err
  assert (finished / "metrics.jsonl").read_bytes() == before
  stored = json.loads((finished / "config.json").read_text())
  assert experiment_from_dict(stored) == make_config()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"train.steps": 41}, r"config\.train\.steps=41 .* with 40;"),
        # Even if the checkpoint is damaged, too.
        ({"model.width": 64}, r"config\.model\.width=64 but"),
    ],
)
def test_another_config_is_refused(finished, make_config, changes, message):
  _remove_params(finished / "checkpoints" / "40")
  before = (finished / "config.json").read_bytes()
  with pytest.raises(ConfigError, match=message):
    loop.train(make_config(changes), finished, skip_damaged=True)
  assert (finished / "config.json").read_bytes() == before
  assert not (finished / "damaged_checkpoints").exists()


def test_another_corpus_is_refused(
    finished, make_config, make_corpus, monkeypatch, tmp_path
):
  other = make_corpus(tmp_path / "data", seed=1)
  monkeypatch.setattr(run_module, "load_corpora", lambda **_: [other])
  with pytest.raises(ConfigError, match="fingerprint"):
    loop.train(make_config(), finished)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model.vocab_size": 256}, r"model\.vocab_size=256.*259.*384"),
        ({"train.batch_size": 12}, r"train\.batch_size=12.*multiple of 8"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    make_config, tmp_path, changes, message
):
  with pytest.raises(ConfigError, match=message):
    loop.train(make_config(changes), tmp_path)


def test_second_run_in_a_workdir_is_refused(make_config, tmp_path):
  with (
      locking.locked(tmp_path / "lock", ""),
      pytest.raises(ConfigError, match="another process is training in it"),
  ):
    loop.train(make_config(), tmp_path)
  assert not (tmp_path / "checkpoints").exists()


def test_unwritable_workdir_is_refused(make_config, tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(ConfigError, match=r"--workdir=.*file/run cannot be"):
    loop.train(make_config(), tmp_path / "file" / "run")


def test_profile_steps_outside_the_run_are_refused(make_config, tmp_path):
  message = "profile_steps=2,5: this run trains steps 1 to 3"
  with pytest.raises(ConfigError, match=message):
    loop.train(make_config(_SHORT), tmp_path, profile_steps=(2, 5))


def test_sigterm_during_the_last_save_loses_nothing(
    make_config, monkeypatch, tmp_path
):
  wait = loop.CheckpointSaver.wait

  def terminated(self):
    monkeypatch.setattr(loop.CheckpointSaver, "wait", wait)
    os.kill(os.getpid(), signal.SIGTERM)
    return self.wait()

  monkeypatch.setattr(loop.CheckpointSaver, "wait", terminated)
  loop.train(make_config(_SHORT), tmp_path)
  assert checkpoint.load_for_evaluation(tmp_path)[2] == 3


def test_lost_last_state_is_a_failed_run(make_config, monkeypatch, tmp_path):
  monkeypatch.setattr(loop.CheckpointSaver, "wait", lambda self: False)
  with pytest.raises(loop.FailedRunError, match="after step 3 could not be"):
    loop.train(make_config(_SHORT), tmp_path)
