"""train.py as a user runs it: killed, resumed, and given wrong settings."""

import json
import math
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_CONFIG = _ROOT / "tests" / "support" / "tiny_config.py"


@pytest.fixture(scope="module")
def start(tmp_path_factory):
  """Returns a function that starts train.py on one CPU device."""
  shared = tmp_path_factory.mktemp("shared")
  environment = os.environ | {
      "XLA_FLAGS": "",
      "JAX_PLATFORMS": "cpu",
      "JAX_COMPILATION_CACHE_DIR": str(shared / "jax"),
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  }

  def start(workdir, *flags):
    return subprocess.Popen(
        [
            sys.executable,
            str(_ROOT / "train.py"),
            f"--config={_CONFIG}",
            f"--workdir={workdir}",
            f"--config.data.dir={shared / 'data'}",
            *flags,
        ],
        cwd=_ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

  return start


def _finish(process):
  """Returns exit status, stdout and stderr."""
  stdout, stderr = process.communicate(timeout=120)
  return process.returncode, stdout, stderr


def _kill_when(process, condition):
  """Kills the process as soon as `condition()`; False if it ended before."""
  while process.poll() is None:
    if condition():
      process.send_signal(signal.SIGKILL)
      process.communicate()
      return True
    time.sleep(0.0005)
  process.communicate()
  return False


def _num_lines(file):
  return len(file.read_text().splitlines()) if file.exists() else 0


def _changed(path):
  try:
    return path.stat().st_mtime
  except FileNotFoundError:  # Just renamed.
    return 0.0


def test_killed_runs_go_on_bit_for_bit(start, read_results, tmp_path):
  whole, parts = tmp_path / "whole", tmp_path / "parts"
  status, _, stderr = _finish(start(whole))
  assert status == 0, stderr
  metrics, checkpoints = parts / "metrics.jsonl", parts / "checkpoints"

  def finished():
    return [p.name for p in checkpoints.glob("*") if p.name.isdigit()]

  # At some step after the first checkpoint.
  step = random.Random(0).randint(12, 18)
  assert _kill_when(
      start(parts), lambda: finished() and _num_lines(metrics) >= step
  )
  assert finished()

  # While a checkpoint is being written: another one than the kill may have left
  # unfinished.
  began = time.time()
  assert _kill_when(
      start(parts),
      lambda: any(_changed(p) > began for p in checkpoints.glob("*tmp*")),
  )
  assert finished()

  status, _, stderr = _finish(start(parts))
  assert status == 0, stderr
  assert read_results(parts) == read_results(whole)
  assert not list(checkpoints.glob("*tmp*"))


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--config.train.stepz=3", "steps"),
        ("--config.data.length=-1", "config.data.length=-1"),
        ("--config.model.num_heads=5", "config.model.num_heads=5"),
        ("--config.model.encoding=dape_kerpel_log", "dape_kerple_log"),
    ],
)
def test_a_wrong_setting_is_one_line_and_status_2(
    start, tmp_path, flag, message
):
  status, stdout, stderr = _finish(start(tmp_path / "run", flag))
  assert status == 2, stderr
  assert stdout == ""
  assert stderr.count("\n") == 1
  assert stderr.startswith("train.py: error: ")
  assert message in stderr


def test_a_diverged_run_is_one_line_and_leaves_no_broken_checkpoint(
    start, tmp_path
):
  status, _, stderr = _finish(
      start(
          tmp_path,
          "--config.optimizer.learning_rate=1e30",
          "--config.train.checkpoint_every=1",
      )
  )
  assert status == 1, stderr
  assert "Traceback" not in stderr
  last = stderr.splitlines()[-1]
  assert last.startswith("train.py: error: ")
  assert "config.optimizer.learning_rate" in last
  kept = [p.name for p in (tmp_path / "checkpoints").iterdir()]
  # The first update has rate 0, so only the state after it is good.
  assert kept == ["1"]
  for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
    assert math.isfinite(json.loads(line)["loss"])


def test_help_names_the_flags(start, tmp_path):
  status, stdout, _ = _finish(start(tmp_path, "--help"))
  assert status == 0
  for word in ("--config=", "--workdir=", "--config.SECTION.SETTING"):
    assert word in stdout
