"""Memory of attention: the size of temporaries that the compiler reports."""

import jax
import jax.numpy as jnp

from dape_jax import encodings
from dape_jax.benchmarks.attention import materialised


def temporary_bytes(implementation, length):
  """Returns the size for forward and backward: batch 1, 12 heads of 64."""
  encoding = encodings.make("dape_kerple_log", num_heads=12)
  params = materialised.init_params(encoding)
  x = jax.ShapeDtypeStruct((1, length, 12, 64), jnp.float32)
  positions = jax.ShapeDtypeStruct((length,), jnp.int32)
  program = materialised.program(
      encoding, materialised.implementation(implementation), backward=True
  )
  compiled = jax.jit(program).lower(params, x, x, x, positions, x).compile()
  return compiled.memory_analysis().temp_size_in_bytes


def test_temporaries_grow_linearly():
  sizes = {n: temporary_bytes("chunked", n) for n in (2048, 4096, 8192, 16384)}
  for length, size in sizes.items():
    assert sizes.get(2 * length, 0) <= 2.2 * size
  assert sizes[8192] < 128e6
  assert temporary_bytes("materialised", 2048) > 40 * sizes[2048]
