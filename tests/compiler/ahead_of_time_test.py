"""The command that compiles steps for TPU slices, without TPUs."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import jax
import pytest
import tpu_compiler
from command_process import command_process

from dape_jax.compiler import ahead_of_time, programs
from dape_jax.compiler import report as reports
from dape_jax.errors import ConfigError
from dape_jax.training.flops import chip_of

_ROOT = pathlib.Path(__file__).parents[2]
_SMALL = (
    "--config.model.num_layers=2",
    "--config.model.width=256",
    "--config.model.num_heads=4",
    "--config.model.vocab_size=512",
    "--config.data.length=256",
)


@pytest.fixture(scope="module")
def compiler():
  """Returns a function: flags -> exit status, stdout and stderr."""
  with command_process(
      "compiler", "dape_jax.compiler.__main__", tpu_compiler.ENVIRONMENT
  ) as call:
    yield lambda *flags: call("--config=configs/lm.py", *flags)


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
def test_training_step_with_fsdp_and_context(tmp_path):
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
  (report,) = reports.read_lines(str(lines), "--json")
  assert report["fits"] and report["kernel"] and report["code"]
  # The queries of a row are split over two chips, which gather its keys.
  assert report["sent"]["all-gather"] > 0
  assert not report["has_unknown_loops"]
  # A quarter of the matrices, and small parameters.
  numbers = 2 * 12 * 256**2 + 2 * 512 * 256
  assert numbers < report["parts"]["parameters"] < numbers * 1.1
  assert report["parts"]["optimizer"] > 1.9 * report["parts"]["parameters"]
  assert "| train | v5e:2x4 | 2 x 256 | dape" in reports.table([report])
  # The same command reads the report from the file, without a compiler.
  again = _run(*flags, compiler=False)
  assert again.stdout == done.stdout
  assert len(lines.read_text().splitlines()) == 1


@tpu_compiler.needed
def test_program_that_does_not_fit_exits_with_status_3(compiler):
  status, out, err = compiler(
      "--topology=v5e:2x2",
      "--config.train.batch_size=4096",
      "--config.data.length=8192",
      *_SMALL[:-1],
  )
  assert status == 3, err
  assert "DOES NOT FIT, by" in out
  assert "to make it fit: a smaller config.train.batch_size" in out


def _report(compiler, folder, *flags):
  """Returns the report on a program that fits, and what is printed."""
  lines = folder / "aot.jsonl"
  status, out, err = compiler(*flags, f"--json={lines}")
  assert status == 0, err
  (report,) = reports.read_lines(str(lines), "--json")
  return report, out


@pytest.mark.soak
@tpu_compiler.needed
def test_largest_batch(tmp_path, compiler):
  report, out = _report(
      compiler,
      tmp_path,
      "--topology=v5e:2x2",
      "--largest_batch",
      "--config.train.batch_size=2048",
      "--config.data.length=8192",
      *_SMALL[:-1],
  )
  assert report["peak"] <= report["limit"] < report["twice_peak"]
  assert "the largest batch that fits: twice the batch needs" in out


@tpu_compiler.needed
def test_data_parallel_training_only_reduces_gradients(tmp_path, compiler):
  flags = ("--topology=v5e:2x2", "--config.train.batch_size=8", *_SMALL)
  report, _ = _report(compiler, tmp_path, *flags)
  # Each chip works on its own windows.
  assert report["sent"].keys() == {"all-reduce"} and report["kernel"]
  assert report["parts"]["temporaries"] < 2**30


@tpu_compiler.needed
@pytest.mark.parametrize(
    "encoding",
    [pytest.param("rope", marks=pytest.mark.soak), "dape_v2_kerple_log"],
)
def test_evaluation_updates_the_cache_in_place(tmp_path, compiler, encoding):
  report, _ = _report(
      compiler,
      tmp_path,
      "--topology=v5e:2x2",
      "--eval_length=65536",
      f"--config.model.encoding={encoding}",
      "--config.model.encoding_options={}",
      "--config.model.num_layers=8",
      *_SMALL[1:],
  )
  assert report["kernel"] and report["chips"] == 1 and not report["sent"]
  # The copies of one layer, whose heads of 64 are padded to 128.
  assert report["parts"]["temporaries"] < report["parts"]["cache"]


@tpu_compiler.needed
def test_mesh_axis_may_divide_an_axis_of_the_torus(compiler):
  status, out, err = compiler(
      "--topology=v5p:4x4x4", "--config.mesh.fsdp=32", *_SMALL
  )
  assert status == 0, err
  assert "v5p:4x4x4 (64 chips)" in out


@pytest.mark.parametrize("batch_size", [4, 32, 64, 4096])
@pytest.mark.parametrize(
    "fixed, per_row, largest", [(1, 1, 8), (0, 0.15, 64), (9, 1, 4), (20, 1, 0)]
)
def test_search_for_the_largest_batch(
    make_config, monkeypatch, batch_size, fixed, per_row, largest
):
  tried = []

  def compile_for(config, topology, generate_code):
    del topology, generate_code
    rows = config.train.batch_size
    assert rows not in tried
    tried.append(rows)
    # Padding makes it a little more than proportional.
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
@pytest.mark.parametrize(
    "flags, message",
    [
        (("--topology=v9x:2x2",), "--topology=v9x:2x2: unknown to the TPU"),
        (
            ("--topology=v5e:2x2", "--largest_batch", "--eval_length=512"),
            "--largest_batch is for training",
        ),
        ((), "give --config and --topology"),
    ],
)
def test_invalid_flags(compiler, flags, message):
  status, _, err = compiler(*flags)
  assert status == 2
  assert message in err


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"mesh.fsdp": 3}, "do not make 4 devices"),
        ({"train.batch_size": 6}, "a multiple of 4"),
    ],
)
def test_config_that_does_not_fit_the_slice(
    make_config, monkeypatch, changes, message
):
  monkeypatch.setattr(programs, "_devices", lambda _: jax.devices()[:4])
  monkeypatch.setattr(programs, "chip_of", lambda _: chip_of("TPU v5 lite"))
  with pytest.raises(ConfigError, match=message):
    programs.lower(make_config(changes), "v5e:2x2", 0)


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is not None,
    reason="libtpu is installed in this environment",
)
def test_missing_compiler():
  done = _run("--topology=v5e:2x2", compiler=False)
  assert done.returncode == 2
  assert "pip install libtpu" in done.stderr


def test_reports_of_the_documentation():
  folder = _ROOT / "docs/results/aot"
  lines = reports.read_lines(str(folder / "lines.jsonl"), "--table")
  assert reports.table(lines) + "\n" == (folder / "table.md").read_text()
  texts = [reports.text(report) for report in lines]
  assert "the largest batch that fits: twice the batch needs" in texts[0]
  does_not_fit = [t for t, r in zip(texts, lines) if not r["fits"]]
  assert does_not_fit
  for text in does_not_fit:
    assert "DOES NOT FIT, by" in text and "to make it fit:" in text


def test_invalid_table_file(tmp_path):
  file = tmp_path / "lines"
  file.write_text(json.dumps({"peak": 1}))
  for path in (file, tmp_path / "missing"):
    with pytest.raises(ConfigError, match="--table="):
      reports.read_lines(str(path), "--table")
