"""Multi-process runs: stopped, killed and resumed on other meshes."""

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
def data_dir(tmp_path_factory):
  return str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def config(make_config, data_dir):
  return make_config({"data.dir": data_dir, "model.encoding": "kerple_log"})


@pytest.fixture(scope="module")
def uninterrupted(config, read_results, tmp_path_factory):
  """Results of an uninterrupted run on the eight devices of this process."""
  workdir = tmp_path_factory.mktemp("uninterrupted")
  loop.train(config, workdir)
  return read_results(workdir)


@pytest.fixture(scope="module")
def run(data_dir):
  """Returns a function that starts a script on emulated CPU devices."""

  def run(script, *flags, devices=1):
    environment = os.environ | {
        "XLA_FLAGS": (
            f"--xla_force_host_platform_device_count={devices}"
            " --xla_backend_optimization_level=0"
        ),
        "DAPE_JAX_DATA": data_dir,
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
  """Returns a function that starts train.py processes of two devices each."""
  started = []

  def train(workdir, processes, *flags, each=None):
    with socket.socket() as free:
      free.bind(("127.0.0.1", 0))
      address = f"127.0.0.1:{free.getsockname()[1]}"
    together = [
        run(
            "train.py",
            f"--config={_CONFIG}",
            "--config.model.encoding=kerple_log",
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


def _assert_stopped(workdir, outputs, first_step):
  """Checks that SIGTERM saved the last logged step."""
  assert "stopped by SIGTERM after step" in outputs[0]
  saved = max(int(p.name) for p in (workdir / "checkpoints").iterdir())
  assert first_step <= saved < 40
  lines = (workdir / "metrics.jsonl").read_text().splitlines()
  assert json.loads(lines[-1])["step"] == saved


def _assert_close(results, expected):
  for record, other in zip(results, expected, strict=True):
    assert record == pytest.approx(other, rel=1e-4)


def test_two_processes_stop_together_and_one_resumes(
    train, config, uninterrupted, read_results, tmp_path
):
  two = train(tmp_path, 2)
  _wait_for_steps(tmp_path, 5, two)
  two[1].send_signal(signal.SIGTERM)
  _assert_stopped(tmp_path, _finish(two), first_step=5)
  loop.train(config, tmp_path)
  _assert_close(read_results(tmp_path), uninterrupted)


@pytest.mark.soak
def test_killed_two_are_resumed_by_four_and_evaluated_by_one(
    run, train, config, uninterrupted, read_results, tmp_path
):
  workdir = tmp_path / "run"
  two = train(workdir, 2)
  _wait_for_steps(workdir, 13, two)
  two[1].send_signal(signal.SIGKILL)
  two[1].wait()
  two[0].kill()  # As a launcher would.

  four = train(workdir, 4, "--config.mesh.fsdp=2", "--config.mesh.context=2")
  _wait_for_steps(workdir, 17, four)
  four[3].send_signal(signal.SIGTERM)
  outputs = _finish(four)
  assert "resuming from" in outputs[0]
  _assert_stopped(workdir, outputs, first_step=17)

  loop.train(config, workdir)
  _assert_close(read_results(workdir), uninterrupted)

  report = tmp_path / "report"
  flags = [f"--checkpoint={workdir}", "--lengths=32,64", "--regions=2"]
  _finish([run("eval.py", *flags, f"--output={report}")])
  results = json.loads((report / "results.json").read_text())
  assert [row["length"] for row in results["runs"][0]["rows"]] == [32, 64]


@pytest.mark.soak
@pytest.mark.parametrize(
    "flag, message",
    [
        ("--config.optimizer.learning_rate=0.5", "have different settings"),
        ("--config.data.source=code", "is not the same text in all"),
    ],
)
def test_processes_that_differ_are_refused(train, tmp_path, flag, message):
  outputs = []
  one, other = train(tmp_path, 2, each=[(), (flag,)])
  for process in (one, other):
    outputs.append(process.communicate(timeout=200)[0])
    assert process.returncode == 2, outputs
  assert all(message in output for output in outputs)
