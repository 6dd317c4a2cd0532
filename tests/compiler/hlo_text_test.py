"""Parsing the text of compiled programs."""

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
