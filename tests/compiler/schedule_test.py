"""Cycles parsed from kernel schedules and from the compiler's estimates."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from dape_jax.compiler import schedule


def bundles(*instructions):
  """Returns the text of a schedule, given lines "label depth instruction"."""
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
def test_schedule_counts_loop_iterations(limit, trips):
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


def test_pallas_kernels_are_found_in_nested_jaxprs():
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
