"""docs/running: the commands that its scripts run, with a fake gcloud."""

import os
import pathlib
import subprocess

import pytest

_ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture
def tpu(tmp_path):
  """Returns a function: arguments -> result of tpu.sh, with a fake gcloud."""
  gcloud = tmp_path / "gcloud"
  gcloud.write_text('#!/bin/sh\nprintf "%s\\n" "$*"\n')
  gcloud.chmod(0o755)
  environment = os.environ | {
      "PATH": f"{tmp_path}:{os.environ['PATH']}",
      "TPU": "slice",
      "ZONE": "zone",
      "TYPE": "v5p-128",
      "BUCKET": "gs://bucket",
  }

  def run(*arguments):
    return subprocess.run(
        ["bash", "docs/running/tpu.sh", *arguments],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )

  return run


def test_tpu_trains_on_the_given_text(tpu):
  done = tpu("data", "/data/arxiv")
  assert "storage cp --recursive /data/arxiv gs://bucket/data/" in done.stdout
  source = "--config.data.source=data/arxiv"
  assert f"train with {source}" in done.stdout
  done = tpu("train", "runs/arxiv", "size=1.3b")
  assert done.returncode == 2 and not done.stdout
  assert "give --config.data.source" in done.stderr
  done = tpu("train", "runs/arxiv", "size=1.3b", source)
  assert "--worker=all" in done.stdout
  for flag in (source, "configs/lm.py:size=1.3b", "--workdir=gs://bucket/runs"):
    assert flag in done.stdout


def test_tpu_passes_evaluation_flags(tpu):
  assert tpu("evaluate", "runs/arxiv").returncode
  done = tpu("evaluate", "runs/arxiv", "--lengths=512,1024", "--regions=4")
  for flag in (
      "--worker=0",
      "--checkpoint=gs://bucket/runs/arxiv",
      "--output=reports/runs/arxiv --lengths=512,1024 --regions=4",
  ):
    assert flag in done.stdout


def test_tpu_prints_its_usage(tpu):
  for arguments in ((), ("trian",)):
    done = tpu(*arguments)
    assert done.returncode == 2
    assert "docs/running/tpu.sh delete" in done.stdout
  assert "--version=v2-alpha-tpuv5\n" in tpu("create").stdout
  assert "slice: --zone=zone --worker=all" in tpu("install").stdout


def test_slurm_script_parses():
  subprocess.run(["bash", "-n", "docs/running/slurm.sh"], cwd=_ROOT, check=True)
