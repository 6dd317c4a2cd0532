"""The attention benchmark: its baselines compute attention, its parsers read."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tpu_compiler
from jax.experimental import pallas as pl

from dape_jax import encodings
from dape_jax.benchmarks.attention import materialised, report, run, tpu
from dape_jax.compiler import schedule

ROOT = pathlib.Path(__file__).parents[2]
NAMES = ["alibi", "dape_kerple_log", "dape_rope", "dape_v2_fire", "nope"]


def case(name):
  edge = {"edge": "zero"} if name.startswith("dape_v2") else {}
  encoding = encodings.make(name, num_heads=4, **edge)
  params = materialised.init_params(encoding, seed=1)
  return encoding, params, run._arrays(24, (2, 4, 8), jnp.float32)


def results(encoding, params, arrays, implementation):
  attend = materialised.implementation(implementation)
  function = materialised.program(encoding, attend, backward=True)
  return jax.jit(function)(params, *arrays)


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

  encoding, params, arrays = case(name)
  if "rope" in name:
    with pytest.raises(NotImplementedError):
      pytorch.torch_program(encoding, params, *arrays, threads=1)
    return
  out, (_, *gradients) = results(encoding, params, arrays, "materialised")
  found = pytorch.torch_program(encoding, params, *arrays, threads=1)()
  for x, y in zip(found[:4], [out, *gradients]):
    np.testing.assert_allclose(x.detach().numpy(), y, rtol=1e-4, atol=2e-5)
  assert len(found) == 4 + len(jax.tree.leaves(params))


def measured(**changes):
  request = {
      "encoding_names": ["dape_alibi"],
      "lengths": [16],
      "passes": ["forward", "both"],
      "implementations": ["materialised", "reference", "none"],
      "shape": (1, 2, 8),
      "dtype": "float32",
      "repeats": 2,
      "with_torch": False,
  }
  return list(run.measure(**(request | changes)))


def test_measure():
  rows = measured()
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
  for row in measured(implementations=["materialised"]):
    assert row["skipped"].startswith("does not fit: 0.0 GB")
    assert "seconds" not in row


def bundles(*instructions):
  """Returns the text of a schedule; each line "label depth instruction"."""
  lines = ["= control target key start", "LB: loop body", ""]
  for i, text in enumerate(instructions):
    label, depth, instruction = text.split(" ", 2)
    label = label.replace("-", "  ")
    lines.append(
        f" {i:#x} {label}: {depth.replace('-', '')} {{ {instruction} }}"
    )
  return "\n".join(lines)


def product(count, depth=">"):
  return [f"- {depth} %1 = vmatmul.bf16.gmra.mxu0 %v1"] * count


def test_schedule_of_full_and_masked_tiles():
  found = schedule.parse_schedule(
      bundles(
          "- - %s1 = smov.u32 0",
          "LB > %s2 = sphi",
          "- > %3 = sbr.rel (%p1) target = $region4",
          *product(6),
          "PF > %4 = sbr.rel (!%p2) target = $region8 } /* Start/End empty"
          " region 4 :: Start region 5 */ {",
          "- > %v5 = vadd.f32",
          *product(7),
          "PF > %s6 = sadd.s32 } /* Start/End empty region 8 */ {",
          "- - %7 = sbr.rel (!%p9) target = $region99",
      )
  )
  assert found == schedule.Schedule((6, 8), step=5, unknown_trips=False)


@pytest.mark.parametrize("limit, trips", [("4", 4), ("%s9", 1)])
def test_schedule_counts_turns_of_loops(limit, trips):
  found = schedule.parse_schedule(
      bundles(
          "LB > %s1 = sphi",
          "- > %2 = sbr.rel (%p0) target = $region4",
          f"LB >> %p3 = scmp.ge.s32.totalorder %s2, {limit}",
          *product(3, ">>"),
          "- >> %4 = sbr.rel (!%p3) target = $region77",
          *["- > "] * 4,
          "PF > %s6 = sadd.s32 } /* Start/End empty region 4 */ {",
      )
  )
  assert found.bodies == (9 * trips,)
  assert found.unknown_trips == (trips == 1)


@pytest.mark.parametrize("text", ["", "no bundles", bundles("- - %s1 = smov")])
def test_unknown_schedules_are_none(text, tmp_path):
  assert schedule.parse_schedule(text) is None
  assert schedule.kernel_schedule(tmp_path, "kernel") is None
  (tmp_path / "1-kernel.2-72-final_bundles.txt").write_text(text)
  assert schedule.kernel_schedule(tmp_path, "kernel") is None


def test_pallas_kernels_are_found_inside():
  def copy(x):
    call = pl.pallas_call(
        lambda x, y: None, out_shape=x, grid=(2, 3), name="copy"
    )
    return call(x)

  jaxpr = jax.make_jaxpr(jax.jit(jax.vmap(copy)))(jnp.ones((4, 8)))
  ((name, steps),) = schedule.pallas_kernels(jaxpr)
  assert (name, steps) == ("copy", 24)


PROGRAM = """
%inner (a: s32[]) -> s32[] {
  %x = s32[] add(%a), backend_config={"estimated_cycles":"10"}
}
%known (a: s32[]) -> pred[] {
  %limit = s32[]{:T(128)} constant(8)
  ROOT %lt = pred[] compare(%a, %limit), direction=LT
}
%data (a: s32[]) -> pred[] {
  ROOT %lt = pred[] compare(%a, %b), direction=LT
}
ENTRY %main (a: s32[]) -> s32[] {
  %w = s32[] while(%a), condition=%known, body=%inner
  %v = s32[] while(%w), condition=%data, body=%inner
  %y = s32[] add(%v), backend_config={"estimated_cycles":"FIRST"}
}
"""


def test_xla_cycles():
  found = schedule.xla_cycles(PROGRAM.replace("FIRST", "3"))
  assert found == schedule.XlaCycles(83, (10,))
  found = schedule.xla_cycles(PROGRAM.replace("FIRST", str(2**63 - 1)))
  assert found == schedule.XlaCycles(None, (10,))
  assert schedule.xla_cycles("ENTRY %main (a: s32[]) -> s32[] {\n}") is None


def test_bound_of_matrix_units():
  size = {"heads": 12, "head_dim": 64, "bias": True}
  bound = tpu.mxu_bound("v5e", width=32, **size)
  assert bound == {"forward": 72 / 512, "backward": 220 / 512}
  assert tpu.mxu_bound("v5e", width=32, taps=3, **size) == bound
  assert tpu.mxu_bound("v5e", width=None, **size)["forward"] == 24 / 512
  assert tpu.mxu_bound("v6e", width=32, **size)["forward"] == 72 / 1024


def command(*arguments, environment=()):
  return subprocess.run(
      [sys.executable, "-m", "dape_jax.benchmarks.attention", *arguments],
      cwd=ROOT,
      env=os.environ | {"XLA_FLAGS": ""} | dict(environment),
      capture_output=True,
      text=True,
  )


def test_command_writes_a_table_and_json(tmp_path):
  done = command(
      "--lengths=16",
      "--heads=2",
      "--head_dim=8",
      "--repeats=1",
      "--encodings=dape_nope",
      f"--output={tmp_path}/out",
  )
  assert done.returncode == 0, done.stderr
  assert (tmp_path / "out.md").read_text() == done.stdout
  assert "| dape_nope | 16     | both " in done.stdout
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
def test_bad_flags(flag, message):
  done = command(flag)
  assert done.returncode == 2
  assert done.stderr.startswith("bench: error: ")
  assert done.stderr.count("\n") == 1
  assert message in done.stderr


@pytest.mark.parametrize("module", ["torch", "libtpu"])
def test_missing_dependencies(module, monkeypatch):
  from dape_jax.errors import ConfigError

  if module == "torch":
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r"pip install 'dape_jax\[bench\]'"):
      run.require_torch()
  else:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install libtpu"):
      list(tpu.measure(["v5e"], ["chunked"], {}))


@tpu_compiler.needed
def test_tpu_compiler_tells_cycles(tmp_path):
  done = command(
      "--tpu=v5e",
      "--implementations=splash,chunked",
      "--encodings=kerple_log",
      "--lengths=512",
      "--heads=2",
      "--pass=forward",
      f"--output={tmp_path}/out",
      environment=tpu_compiler.ENVIRONMENT,
  )
  assert done.returncode == 0, done.stderr
  splash, chunked = json.loads((tmp_path / "out.json").read_text())["rows"]
  assert 0.006 < splash["cycles"][0]["full"] < 0.02  # the bound is 0.008
  assert "a turn of XLA's loop" in [part["of"] for part in chunked["cycles"]]
  assert chunked["temp_bytes"] < 2**22


@tpu_compiler.needed
def test_kernel_schedules_stay_short(tmp_path):
  """DAPE over KERPLE, 12 heads of 64, v5e: 0.22 and 0.66, with slack.

  A block loaded before a copy starts instead of behind it cost 7% once. Change
  the numbers when a new libtpu schedules otherwise.
  """
  done = command(
      "--tpu=v5e",
      "--implementations=pallas_tpu",
      "--encodings=dape_kerple_log",
      "--lengths=2048",
      "--pass=both",
      f"--output={tmp_path}/out",
      environment=tpu_compiler.ENVIRONMENT,
  )
  assert done.returncode == 0, done.stderr
  [row] = json.loads((tmp_path / "out.json").read_text())["rows"]
  cycles = {part["of"]: part["full"] for part in row["cycles"]}
  if "dape_forward" not in cycles:
    pytest.skip("this libtpu does not tell schedules")
  assert cycles["dape_forward"] < 0.225
  assert cycles["dape_backward"] < 0.68
