"""Metrics files, terminal output and throughput."""

import json
import resource

from etils import epath
from tensorboardX.proto import event_pb2

from dape_jax.training import flops, metrics
from dape_jax.training.metrics import MetricsWriter, Throughput


def _writer(workdir, first_step):
  return MetricsWriter(
      epath.Path(workdir),
      first_step=first_step,
      total_steps=100,
      tokens_per_step=8,
      main_process=True,
  )


def _read_events(folder):
  events = []
  for file in sorted(folder.iterdir(), key=lambda f: f.stat().st_mtime_ns):
    content = file.read_bytes()
    while content:  # Length and two checksums around each record.
      size = int.from_bytes(content[:8], "little")
      events.append(event_pb2.Event.FromString(content[12 : 12 + size]))
      content = content[16 + size :]
  return events


def test_resumed_run_drops_later_lines_of_the_killed_one(tmp_path):
  with _writer(tmp_path, 0) as writer:
    for step in (1, 2, 3):
      writer.write(step, {"loss": 0.1 + step})
    writer.write(3, {"validation_loss": 1 / 3})
  path = tmp_path / "metrics.jsonl"
  with path.open("a") as file:
    file.write('{"step": 4, "lo')  # Killed while writing.
  with _writer(tmp_path, 2) as writer:
    writer.write(3, {"loss": 7.0})
  records = [json.loads(line) for line in path.read_text().splitlines()]
  assert records == [
      {"step": 1, "loss": 1.1},
      {"step": 2, "loss": 2.1},
      {"step": 3, "loss": 7.0},
  ]


def test_lines_refused_by_a_full_disk_are_written_later(tmp_path, capsys):
  path = tmp_path / "metrics.jsonl"
  with _writer(tmp_path, 0) as writer:
    writer.write(1, {"loss": 0.5})
    size = path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
    try:
      writer.write(2, {"loss": 0.25})
      writer.write(3, {"loss": 0.125})
      assert path.stat().st_size == size
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer.write(4, {"loss": 0.0625})
  records = [json.loads(line) for line in path.read_text().splitlines()]
  assert [record["step"] for record in records] == [1, 2, 3, 4]
  assert capsys.readouterr().err.count("cannot be written") == 1


def test_tensorboard_has_the_same_numbers_and_hides_dropped_ones(tmp_path):
  with _writer(tmp_path, 0) as writer:
    writer.write(3, {"loss": 0.5})
  with _writer(tmp_path, 2) as writer:
    writer.write(3, {"loss": 0.25})
  events = _read_events(tmp_path / "tensorboard")
  scalars = [
      (e.step, v.tag, v.simple_value) for e in events for v in e.summary.value
  ]
  assert scalars == [(3, "loss", 0.5), (3, "loss", 0.25)]
  starts = [
      e.step for e in events if e.session_log.status == e.session_log.START
  ]
  assert starts[-1] == 3  # TensorBoard hides older events from here on.


def test_remote_workdir_is_up_to_date_after_flush(tmp_path, monkeypatch):
  monkeypatch.setattr(metrics, "is_remote", lambda path: True)
  path = tmp_path / "metrics.jsonl"
  with _writer(tmp_path, 0) as writer:
    writer.write(1, {"loss": 1.0})
    assert not path.exists()
    writer.flush()
    writer.write(2, {"loss": 2.0})
    assert path.read_text() == '{"step": 1, "loss": 1.0}\n'
  with _writer(tmp_path, 1) as writer:
    writer.write(2, {"loss": 3.0})
  records = [json.loads(line) for line in path.read_text().splitlines()]
  assert [record["loss"] for record in records] == [1.0, 3.0]
  scalars = [
      e for e in _read_events(tmp_path / "tensorboard") if e.summary.value
  ]
  assert [e.step for e in scalars] == [1, 2, 2]


def test_plain_lines_without_a_terminal(tmp_path, capsys):
  with _writer(tmp_path, 0) as writer:
    writer.write(60, {"loss": 1.23456, "tokens_per_second": 32.0})
    writer.write(60, {"validation_loss": 2.0})
  assert capsys.readouterr().err.splitlines() == [
      "step 60/100: loss 1.2346, 32 tokens/s, 00:10 left",
      "step 60/100: validation_loss 2.0000",
  ]


def test_progress_bar_on_a_terminal(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr("sys.stderr.isatty", lambda: True)
  with _writer(tmp_path, 0) as writer:
    writer.advance(60)
    writer.write(60, {"loss": 1.23456, "tokens_per_second": 32.0})
    writer.write(60, {"validation_loss": 2.0})
  shown = capsys.readouterr().err
  assert "60/100" in shown
  assert "loss 1.2346, 32 tokens/s" in shown
  assert "step 60: validation_loss 2.0000\n" in shown


def test_throughput_since_the_last_restart(monkeypatch):
  now = 100.0
  monkeypatch.setattr("time.monotonic", lambda: now)
  throughput = Throughput(tokens_per_step=10, flops_per_token=1.0)
  assert throughput.measure(1) == {}
  now = 102.0
  assert throughput.measure(5) == {
      "tokens_per_second": 20.0,
      "seconds_per_step": 0.5,
  }
  now = 500.0
  throughput.restart(5)
  now = 501.0
  assert throughput.measure(6) == {
      "tokens_per_second": 10.0,
      "seconds_per_step": 1.0,
  }


def test_model_flop_utilization_of_a_known_chip(monkeypatch):
  chip = flops.Chip(flops=1e3, memory_bandwidth=1.0)
  monkeypatch.setattr(metrics, "chip_of", lambda kind: chip)
  now = 0.0
  monkeypatch.setattr("time.monotonic", lambda: now)
  throughput = Throughput(tokens_per_step=10, flops_per_token=40.0)
  throughput.restart(0)
  now = 1.0
  # 400 FLOPs in a second, of eight devices of 1000.
  assert throughput.measure(1)["model_flop_utilization"] == 400 / 8000
