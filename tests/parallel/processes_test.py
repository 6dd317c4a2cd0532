"""A run of several real processes: killed, stopped, and gone on with by others."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from dape_jax.training import loop

_ROOT = pathlib.Path(__file__).parents[2]
_CONFIG = _ROOT / "tests" / "support" / "tiny_config.py"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
  return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def run(shared):
  """Returns a function that starts a script with so many CPU devices."""

  def run(script, *flags, devices=1):
    environment = os.environ | {
        "XLA_FLAGS": (
            f"--xla_force_host_platform_device_count={devices}"
            " --xla_backend_optimization_level=0"
        ),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(shared / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "DAPE_JAX_DATA": str(shared / "data"),
    }
    return subprocess.Popen(
        [sys.executable, str(_ROOT / script), *flags],
        cwd=_ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

  return run


@pytest.fixture
def train(run):
  """Returns a function that starts so many processes of train.py."""
  started = []

  def train(workdir, processes, *flags, each=None):
    with socket.socket() as free:
      free.bind(("127.0.0.1", 0))
      address = f"127.0.0.1:{free.getsockname()[1]}"
    together = [
        run(
            "train.py",
            f"--config={_CONFIG}",
            f"--workdir={workdir}",
            f"--coordinator_address={address}",
            f"--num_processes={processes}",
            f"--process_id={number}",
            *flags,
            *(each[number] if each else ()),
            devices=2,
        )
        for number in range(processes)
    ]
    started.extend(together)
    return together

  yield train
  for process in started:
    process.kill()


def _wait_for_steps(workdir, steps, processes):
  metrics = workdir / "metrics.jsonl"
  while not metrics.exists() or len(metrics.read_text().splitlines()) < steps:
    assert all(p.poll() is None for p in processes), processes[0].stdout.read()
    time.sleep(0.005)


def _finish(processes):
  outputs = [process.communicate(timeout=200)[0] for process in processes]
  assert [p.returncode for p in processes] == [0] * len(processes), outputs
  return outputs


def test_killed_stopped_and_gone_on_with_by_others(
    run, train, shared, make_config, read_results, tmp_path
):
  whole, parts = tmp_path / "whole", tmp_path / "parts"
  config = make_config({"data.dir": str(shared / "data")})
  loop.train(config, whole)  # On the eight devices of this process.

  two = train(parts, 2)
  _wait_for_steps(parts, 13, two)
  two[1].send_signal(signal.SIGKILL)
  two[1].wait()
  two[0].kill()  # As what started them would.

  four = train(parts, 4, "--config.mesh.fsdp=2", "--config.mesh.context=2")
  _wait_for_steps(parts, 17, four)
  four[3].send_signal(signal.SIGTERM)
  outputs = _finish(four)
  assert "going on from" in outputs[0]
  assert "stopped by SIGTERM after step" in outputs[0]
  saved = max(int(p.name) for p in (parts / "checkpoints").iterdir())
  assert 17 <= saved < 40
  lines = (parts / "metrics.jsonl").read_text().splitlines()
  assert json.loads(lines[-1])["step"] == saved

  loop.train(config, parts)
  for record, expected in zip(
      read_results(parts), read_results(whole), strict=True
  ):
    assert record == pytest.approx(expected, rel=1e-4)

  # On one device, what four had written.
  report = tmp_path / "report"
  _finish(
      [
          run(
              "eval.py",
              f"--checkpoint={parts}",
              "--lengths=32,64",
              "--regions=2",
              f"--output={report}",
          )
      ]
  )
  results = json.loads((report / "results.json").read_text())
  assert [row["length"] for row in results["runs"][0]["rows"]] == [32, 64]


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--config.optimizer.learning_rate=0.5", "have different settings"),
        ("--config.data.source=code", "is not the same text for all"),
    ],
)
def test_processes_that_differ_are_refused(train, tmp_path, flag, message):
  outputs = []
  one, other = train(tmp_path, 2, each=[(), (flag,)])
  for process in (one, other):
    outputs.append(process.communicate(timeout=200)[0])
    assert process.returncode == 2, outputs
  assert all(message in output for output in outputs)


def test_flags_of_processes_belong_together(run, tmp_path):
  process = run(
      "train.py",
      f"--config={_CONFIG}",
      f"--workdir={tmp_path}",
      "--num_processes=2",
  )
  output, _ = process.communicate(timeout=100)
  assert process.returncode == 2
  assert "--coordinator_address, --num_processes and --process_id" in output
