"""train.py as a user runs it: killed, resumed, and given invalid settings."""

import json
import math
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from dape_jax.training import loop

_ROOT = pathlib.Path(__file__).parents[2]
_CONFIG = _ROOT / "tests" / "support" / "tiny_config.py"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def start(data_dir):
  """Returns a function that starts train.py on the devices of this process."""

  def start(workdir, *flags):
    command = [sys.executable, str(_ROOT / "train.py"), f"--config={_CONFIG}"]
    command += [f"--workdir={workdir}", f"--config.data.dir={data_dir}", *flags]
    return subprocess.Popen(
        command,
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

  return start


@pytest.fixture(scope="module")
def uninterrupted(make_config, data_dir, read_results, tmp_path_factory):
  """The results of an uninterrupted run in this process."""
  workdir = tmp_path_factory.mktemp("uninterrupted")
  loop.train(make_config({"data.dir": str(data_dir)}), workdir)
  return read_results(workdir)


def _finish(process):
  """Returns exit status, stdout and stderr."""
  stdout, stderr = process.communicate(timeout=120)
  return process.returncode, stdout, stderr


def _kill_when(process, condition):
  """Kills the process as soon as `condition()`; fails if it ends before."""
  while not condition():
    assert process.poll() is None, process.communicate()
    time.sleep(0.0005)
  process.send_signal(signal.SIGKILL)
  process.communicate()


def _finished_steps(workdir):
  folders = (workdir / "checkpoints").glob("*")
  return [p.name for p in folders if p.name.isdigit()]


def _changed(path):
  try:
    return path.stat().st_mtime
  except FileNotFoundError:  # Just renamed.
    return 0.0


def _kill_after_a_checkpoint(process, workdir):
  metrics = workdir / "metrics.jsonl"
  _kill_when(
      process,
      lambda: _finished_steps(workdir)
      and len(metrics.read_text().splitlines()) >= 14,
  )


def _finishes_like(process, workdir, expected, read_results):
  status, _, stderr = _finish(process)
  assert status == 0, stderr
  assert read_results(workdir) == expected
  assert not list((workdir / "checkpoints").glob("*tmp*"))


def test_killed_run_resumes_bit_for_bit(
    start, uninterrupted, read_results, tmp_path
):
  _kill_after_a_checkpoint(start(tmp_path), tmp_path)
  _finishes_like(start(tmp_path), tmp_path, uninterrupted, read_results)


@pytest.mark.soak
def test_run_killed_twice_once_while_saving_resumes_bit_for_bit(
    start, uninterrupted, read_results, tmp_path
):
  _kill_after_a_checkpoint(start(tmp_path), tmp_path)
  # The first kill may have left an unfinished checkpoint.
  began = time.time()
  folder = tmp_path / "checkpoints"
  _kill_when(
      start(tmp_path),
      lambda: any(_changed(p) > began for p in folder.glob("*tmp*")),
  )
  assert _finished_steps(tmp_path)
  _finishes_like(start(tmp_path), tmp_path, uninterrupted, read_results)


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--config.train.stepz=3", "steps"),
        ("--config.data.length=-1", "config.data.length=-1"),
        ("--config.model.num_heads=5", "config.model.num_heads=5"),
        ("--config.model.encoding=dape_kerpel_log", "dape_kerple_log"),
    ],
)
def test_invalid_setting_is_one_line_and_status_2(
    start, tmp_path, flag, message
):
  status, stdout, stderr = _finish(start(tmp_path / "run", flag))
  assert status == 2, stderr
  assert stdout == ""
  assert stderr.count("\n") == 1
  assert stderr.startswith("train.py: error: ")
  assert message in stderr


def test_diverged_run_is_one_line_and_leaves_no_broken_checkpoint(
    start, tmp_path
):
  status, _, stderr = _finish(
      start(
          tmp_path,
          "--config.model.encoding=kerple_log",
          "--config.optimizer.learning_rate=1e30",
          "--config.train.checkpoint_every=1",
      )
  )
  assert status == 1, stderr
  assert "Traceback" not in stderr
  last = stderr.splitlines()[-1]
  assert last.startswith("train.py: error: ")
  assert "config.optimizer.learning_rate" in last
  # The first update has learning rate 0, so only the state after it is finite.
  assert _finished_steps(tmp_path) == ["1"]
  for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
    assert math.isfinite(json.loads(line)["loss"])


def test_help_names_the_flags(start, tmp_path):
  status, stdout, _ = _finish(start(tmp_path, "--help"))
  assert status == 0
  for word in ("--config=", "--workdir=", "--config.SECTION.SETTING"):
    assert word in stdout
