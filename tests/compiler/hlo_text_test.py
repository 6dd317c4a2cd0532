"""Parsing the text of compiled programs, a real and a handwritten one."""

import jax
import jax.numpy as jnp

from dape_jax.compiler import hlo_text


def test_program_of_this_compiler():
  def f(x):
    return jax.lax.fori_loop(0, 7, lambda _, y: jnp.sin(y @ y), x)

  text = jax.jit(f).lower(jnp.ones((8, 8))).compile().as_text()
  program = hlo_text.parse(text)
  loops = [
      i for i in program.computations[program.entry] if i.opcode == "while"
  ]
  assert len(loops) == 1
  assert loops[0].attribute("body") in program.computations


def test_trip_counts_of_loops():
  program = hlo_text.parse("""
%cond (p: (s32[], f32[2])) -> pred[] {
  %p = (s32[]{:T(128)}, f32[2]{0}) parameter(0)
  %limit = s32[]{:T(128)} constant(12)
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%data (p: (s32[], s32[])) -> pred[] {
  %p = (s32[], s32[]) parameter(0)
  %limit = s32[] get-tuple-element(%p), index=1
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %x = f32[2]{0} parameter(0)
  %known = (s32[], f32[2]) while(%x), condition=%cond, body=%body
  ROOT %unknown = (s32[], s32[]) while(%x), condition=%data, body=%body
}
""")
  assert program.entry == "main"
  _, known, unknown = program.computations["main"]
  assert known.opcode == "while"
  assert known.operands == ("x",)
  assert program.turns(known) == 12
  assert program.turns(unknown) is None


def test_bytes_of_types():
  assert hlo_text.bytes_of("f32[2,3]{1,0}") == 24
  assert hlo_text.bytes_of("(bf16[4]{0:T(8,128)}, pred[], u8[3])") == 12
  assert hlo_text.bytes_of("f32[]") == 4
  assert hlo_text.bytes_of("s4[8]") == 4
  vmem = "f32[2,3]{1,0:T(8,128)S(1)}"
  assert hlo_text.bytes_of(vmem) == 0
  assert hlo_text.bytes_of(vmem, anywhere=True) == 24


def test_elements_of_types():
  assert hlo_text.elements("f32[2,3]{1,0}") == ["f32[2,3]{1,0}"]
  assert hlo_text.elements(
      "((f32[2]{0:T(8,128)}), s4[8]{0}, /*index=5*/u32[]{:S(2)})"
  ) == ["(f32[2]{0:T(8,128)})", "s4[8]{0}", "u32[]{:S(2)}"]
