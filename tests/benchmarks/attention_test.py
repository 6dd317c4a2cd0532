"""The attention benchmark: its baselines, its measurements and its command."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
import tpu_compiler
from command_process import command_process

from dape_jax import encodings
from dape_jax.benchmarks.attention import materialised, report, run, tpu
from dape_jax.errors import ConfigError

ROOT = pathlib.Path(__file__).parents[2]
NAMES = ["alibi", "dape_kerple_log", "dape_rope", "dape_v2_fire", "nope"]


def case(name):
  edge = {"edge": "zero"} if name.startswith("dape_v2") else {}
  encoding = encodings.make(name, num_heads=4, **edge)
  return encoding, materialised.arguments(
      encoding, 24, (2, 4, 8), "float32", backward=True
  )


def results(encoding, arguments, implementation):
  attend = materialised.implementation(implementation)
  function = materialised.program(encoding, attend, backward=True)
  return jax.jit(function)(*arguments)


@pytest.mark.parametrize("name", NAMES)
def test_materialised_is_attention(name):
  baseline = results(*case(name), "materialised")
  expected = results(*case(name), "reference")
  for x, y in zip(jax.tree.leaves(baseline), jax.tree.leaves(expected)):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", [*NAMES, "fire", "dape_alibi"])
def test_pytorch_is_materialised(name):
  pytest.importorskip("torch")
  from dape_jax.benchmarks.attention import pytorch

  encoding, arguments = case(name)
  if "rope" in name:
    with pytest.raises(NotImplementedError):
      pytorch.torch_program(encoding, *arguments, threads=1)
    return
  out, (_, *gradients) = results(encoding, arguments, "materialised")
  found = pytorch.torch_program(encoding, *arguments, threads=1)()
  for x, y in zip(found[:4], [out, *gradients]):
    np.testing.assert_allclose(x.detach().numpy(), y, rtol=1e-4, atol=2e-5)
  assert len(found) == 4 + len(jax.tree.leaves(arguments[0]))


def measured(*implementations):
  cases = materialised.Cases(
      ["dape_alibi"], [16], ["forward", "both"], (1, 2, 8), "float32"
  )
  return list(run.measure(cases, implementations, repeats=2, with_torch=False))


def test_measure():
  rows = measured("materialised", "reference", "none")
  assert [row["pass"] for row in rows] == ["forward"] * 3 + ["both"] * 3
  for baseline, other, unknown in (rows[:3], rows[3:]):
    assert baseline["times_faster"] == baseline["times_smaller"] == 1
    assert 0 < other["best_seconds"] <= other["seconds"]
    assert other["temp_bytes"] > 0
    assert "does not exist" in unknown["skipped"]
    assert unknown["times_faster"] is None
    assert "ms" in report.one_line(other)


def test_what_does_not_fit_is_not_run(monkeypatch):
  monkeypatch.setattr(run, "_free_bytes", lambda: 1000)
  for row in measured("materialised"):
    assert row["skipped"].startswith("does not fit: 0.0 GB")
    assert "seconds" not in row


def test_bound_of_matrix_units():
  size = {"heads": 12, "head_dim": 64, "bias": True}
  bound = tpu.mxu_bound("v5e", width=32, **size)
  assert bound == {"forward": 72 / 512, "backward": 220 / 512}
  assert tpu.mxu_bound("v5e", width=32, taps=3, **size) == bound
  assert tpu.mxu_bound("v5e", width=None, **size)["forward"] == 24 / 512
  assert tpu.mxu_bound("v6e", width=32, **size)["forward"] == 72 / 1024


@pytest.fixture(scope="module")
def benchmark():
  """Returns a function: flags -> exit status, stdout and stderr."""
  with command_process(
      "bench",
      "dape_jax.benchmarks.attention.__main__",
      tpu_compiler.ENVIRONMENT,
  ) as call:
    yield call


def test_command_writes_a_table_and_json(tmp_path):
  flags = (
      "--lengths=16",
      "--heads=2",
      "--head_dim=8",
      "--repeats=1",
      "--encodings=dape_nope",
      f"--output={tmp_path}/out",
  )
  done = subprocess.run(
      [sys.executable, "-m", "dape_jax.benchmarks.attention", *flags],
      cwd=ROOT,
      env=os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
      capture_output=True,
      text=True,
  )
  assert done.returncode == 0, done.stderr
  assert (tmp_path / "out.md").read_text() == done.stdout
  table = " ".join(done.stdout.split())
  assert "| dape_nope | 16 | both | chunked |" in table
  document = json.loads((tmp_path / "out.json").read_text())
  assert document["format"] == "dape_jax.benchmarks.attention"
  assert len(document["rows"]) == 4


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--lengths=0", "--lengths=0: 0 is not a positive integer"),
        ("--encodings=dape_kerple", 'Did you mean "dape_kerple_log"?'),
        ("--implementations=chuncked", 'Did you mean "chunked"?'),
        ("--tpu=v4", "Valid: v5e, v5p, v6e."),
        ("--output=/none/there", "its folder does not exist"),
    ],
)
def test_invalid_flags(benchmark, flag, message):
  status, _, err = benchmark(flag)
  assert status == 2
  assert err.startswith("bench: error: ")
  assert err.count("\n") == 1
  assert message in err


def test_missing_dependencies(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ConfigError, match=r"pip install 'dape_jax\[bench\]'"):
    run.check_torch("cpu")
  with pytest.raises(ConfigError, match="pip install libtpu"):
    list(tpu.measure(None, ["v5e"], ["chunked"]))


@tpu_compiler.needed
def test_tpu_compiler_reports_cycles(tmp_path, benchmark):
  status, _, err = benchmark(
      "--tpu=v5e",
      "--implementations=splash,chunked",
      "--encodings=kerple_log",
      "--lengths=512",
      "--heads=2",
      "--pass=forward",
      f"--output={tmp_path}/out",
  )
  assert status == 0, err
  splash, chunked = json.loads((tmp_path / "out.json").read_text())["rows"]
  assert 0.006 < splash["cycles"][0]["full"] < 0.02  # the bound is 0.008
  assert "a turn of XLA's loop" in [part["of"] for part in chunked["cycles"]]
  assert chunked["temp_bytes"] < 2**22


@pytest.mark.soak
@tpu_compiler.needed
def test_kernel_schedules_stay_short(tmp_path, benchmark):
  """DAPE over KERPLE, 12 heads of 64, v5e: 0.22 and 0.66, plus a margin.

  Loading a block before starting a copy, not after, once cost 7%. Change the
  numbers if a new libtpu schedules differently.
  """
  status, _, err = benchmark(
      "--tpu=v5e",
      "--implementations=pallas_tpu",
      "--encodings=dape_kerple_log",
      "--lengths=2048",
      "--pass=both",
      f"--output={tmp_path}/out",
  )
  assert status == 0, err
  [row] = json.loads((tmp_path / "out.json").read_text())["rows"]
  cycles = {part["of"]: part["full"] for part in row["cycles"]}
  if "dape_forward" not in cycles:
    pytest.skip("this libtpu does not dump schedules")
  assert cycles["dape_forward"] < 0.225
  assert cycles["dape_backward"] < 0.68
