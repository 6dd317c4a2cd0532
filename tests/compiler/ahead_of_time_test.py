"""Steps compiled for TPU slices that are not there, as the command does it."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest
import tpu_compiler

from dape_jax.compiler import ahead_of_time
from dape_jax.compiler import report as aot_report
from dape_jax.errors import ConfigError

_ROOT = pathlib.Path(__file__).parents[2]
_SMALL = (
    "--config.model.num_layers=2",
    "--config.model.width=256",
    "--config.model.num_heads=4",
    "--config.model.vocab_size=512",
    "--config.data.length=256",
)


def _run(*flags, compiler=True):
  environment = os.environ | tpu_compiler.ENVIRONMENT
  if not compiler:
    environment["PYTHONPATH"] = ""
  return subprocess.run(
      [
          sys.executable,
          "-m",
          "dape_jax.compiler",
          "--config=configs/lm.py",
          *flags,
      ],
      cwd=_ROOT,
      env=environment,
      capture_output=True,
      text=True,
  )


@tpu_compiler.needed
def test_a_step_on_a_slice_with_fsdp_and_context(tmp_path):
  lines = tmp_path / "aot.jsonl"
  flags = (
      "--topology=v5e:2x4",
      "--config.mesh.fsdp=4",
      "--config.mesh.context=2",
      "--config.train.batch_size=16",
      "--generate_code",
      f"--json={lines}",
      *_SMALL,
  )
  done = _run(*flags)
  assert done.returncode == 0, done.stderr
  assert "v5e:2x4 (8 chips), dape_kerple_log, 2 layers" in done.stdout
  (report,) = aot_report.read_lines(str(lines), "--json")
  assert report["fits"] and report["kernel"] and report["code"]
  # Queries of a row lie on two chips, and gather its keys.
  assert report["sent"]["all-gather"] > 0
  assert not report["has_unknown_loops"]
  # A quarter of the matrices and what is small.
  numbers = 2 * 12 * 256**2 + 2 * 512 * 256
  assert numbers < report["parts"]["parameters"] < numbers * 1.1
  assert report["parts"]["optimizer"] > 1.9 * report["parts"]["parameters"]
  assert "| train | v5e:2x4 | 2 x 256 | dape" in aot_report.table([report])
  # The same command reads what it wrote, without a compiler.
  again = _run(*flags, compiler=False)
  assert again.stdout == done.stdout
  assert len(lines.read_text().splitlines()) == 1


@tpu_compiler.needed
def test_what_does_not_fit_says_by_how_much_and_status_3():
  done = _run(
      "--topology=v5e:2x2",
      "--config.train.batch_size=4096",
      "--config.data.length=8192",
      *_SMALL[:-1],
  )
  assert done.returncode == 3, done.stderr
  assert "DOES NOT FIT, by" in done.stdout
  assert "to make it fit: a smaller config.train.batch_size" in done.stdout


@tpu_compiler.needed
def test_the_largest_batch(tmp_path):
  lines = tmp_path / "aot.jsonl"
  done = _run(
      "--topology=v5e:2x2",
      "--largest_batch",
      "--config.train.batch_size=2048",
      "--config.data.length=8192",
      f"--json={lines}",
      *_SMALL[:-1],
  )
  assert done.returncode == 0, done.stderr
  (report,) = aot_report.read_lines(str(lines), "--json")
  assert report["peak"] <= report["limit"] < report["twice_peak"]
  assert "the largest batch that fits: twice the rows need" in done.stdout


@tpu_compiler.needed
@pytest.mark.parametrize("encoding", ["rope", "dape_v2_kerple_log"])
def test_reading_holds_the_cache_once(tmp_path, encoding):
  lines = tmp_path / "aot.jsonl"
  done = _run(
      "--topology=v5e:2x2",
      "--eval_length=65536",
      f"--config.model.encoding={encoding}",
      "--config.model.encoding_options={}",
      f"--json={lines}",
      "--config.model.num_layers=8",
      *_SMALL[1:],
  )
  assert done.returncode == 0, done.stderr
  (report,) = aot_report.read_lines(str(lines), "--json")
  assert report["kernel"] and report["chips"] == 1
  # Beside it a layer's copies, whose heads of 64 are padded to 128.
  assert report["parts"]["temporaries"] < report["parts"]["cache"]


@tpu_compiler.needed
def test_a_mesh_axis_may_be_a_part_of_an_axis_of_the_torus():
  done = _run("--topology=v5p:4x4x4", "--config.mesh.fsdp=32", *_SMALL)
  assert done.returncode == 0, done.stderr
  assert "v5p:4x4x4 (64 chips)" in done.stdout


@pytest.mark.parametrize("batch_size", [4, 32, 64, 4096])
@pytest.mark.parametrize(
    "fixed, per_row, largest", [(1, 1, 8), (0, 0.15, 64), (9, 1, 4), (20, 1, 0)]
)
def test_the_search_for_the_largest_batch(
    make_config, monkeypatch, batch_size, fixed, per_row, largest
):
  tried = []

  def compile_for(config, topology):
    del topology
    rows = config.train.batch_size
    assert rows not in tried
    tried.append(rows)
    # A little more than proportional, as padding makes it.
    temporaries = per_row * rows + (rows > 16)
    peak = fixed + temporaries
    return {
        "batch_size": rows,
        "chips": 4,
        "parts": {"temporaries": temporaries},
        "peak": peak,
        "limit": 14,
        "fits": peak <= 14,
    }

  monkeypatch.setattr(ahead_of_time, "compile_for", compile_for)
  config = make_config({"train.batch_size": batch_size})
  report = ahead_of_time.compile_largest_batch(config, "four")
  assert report["fits"] == bool(largest)
  assert report["batch_size"] == (largest or 4)
  assert ("twice_peak" in report) == bool(largest)


@tpu_compiler.needed
def test_settings_that_fit_no_slice():
  for flags, message in (
      (
          ("--topology=v9x:2x2",),
          "--topology=v9x:2x2: the TPU compiler knows no",
      ),
      (("--topology=v5e:2x2", "--config.mesh.fsdp=3"), "do not make 4 devices"),
      (
          ("--topology=v5e:2x2", "--config.train.batch_size=6"),
          "a multiple of 4",
      ),
      (
          ("--topology=v5e:2x2", "--largest_batch", "--eval_length=512"),
          "--largest_batch is for training",
      ),
      ((), "give --config and --topology"),
  ):
    done = _run(*flags)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is not None,
    reason="libtpu is installed in this environment",
)
def test_without_the_compiler():
  done = _run("--topology=v5e:2x2", compiler=False)
  assert done.returncode == 2
  assert "pip install libtpu" in done.stderr


def test_a_file_that_is_no_table(tmp_path):
  file = tmp_path / "lines"
  file.write_text(json.dumps({"peak": 1}))
  for path in (file, tmp_path / "missing"):
    with pytest.raises(ConfigError, match="--table="):
      aot_report.read_lines(str(path), "--table")
