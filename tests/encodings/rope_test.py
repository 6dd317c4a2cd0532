import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dape_jax
from dape_jax import encodings
from dape_jax.encodings import rope


def turned(x, positions, frequencies):
  """Pair by pair in float64: x is [T, H], pairs are (k, k + F)."""
  x, out = np.float64(x), np.float64(x)
  for k, frequency in enumerate(frequencies):
    pair = x[:, k] + 1j * x[:, k + len(frequencies)]
    pair = pair * np.exp(1j * np.float64(positions) * frequency)
    out[:, k], out[:, k + len(frequencies)] = pair.real, pair.imag
  return out


def test_frequencies():
  expected = 10000.0 ** (-np.arange(0, 64, 2) / 64)
  frequencies = encodings.rope_frequencies(64, 10000.0)
  assert frequencies.dtype == np.float64
  np.testing.assert_allclose(frequencies, expected, rtol=1e-15)


@jax.jit
def products(x, i, j):
  query, key = dape_jax.Rope(num_heads=1).rotate(x[0], x[1], i, j)
  return jnp.sum(query * key)


@hypothesis.given(
    st.integers(0, 1_000_000), st.integers(0, 2000), st.integers(0, 2000)
)
@hypothesis.settings(deadline=None, max_examples=25, derandomize=True)
def test_products_depend_on_the_difference_of_positions(shift, i, j):
  x = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 16))

  def product(i, j):
    return products(x, jnp.array([i], jnp.int32), jnp.array([j], jnp.int32))

  np.testing.assert_allclose(
      product(i + shift, j + shift), product(i, j), atol=1e-5
  )
  np.testing.assert_allclose(
      product(i + shift, i + shift), jnp.sum(x[0] * x[1]), atol=1e-5
  )


@pytest.mark.parametrize("fraction, pairs", [(1.0, 8), (0.45, 3)])
def test_rotates_the_first_channels_only(fraction, pairs):
  x = np.random.default_rng(0).normal(size=(1, 5, 2, 16)).astype(np.float32)
  positions = np.array([0, 1, 7, 300, 5000], np.int32)
  encoding = dape_jax.Rope(num_heads=2, rope_theta=50.0, fraction=fraction)
  query, key = encoding.rotate(x, x[:, :, :1], positions, positions[None])
  frequencies = 50.0 ** (-np.arange(pairs) / pairs)
  for head in range(2):
    expected = turned(x[0, :, head], positions, frequencies)
    np.testing.assert_allclose(query[0, :, head], expected, atol=2e-5)
  np.testing.assert_array_equal(query[..., 2 * pairs :], x[..., 2 * pairs :])
  np.testing.assert_array_equal(key[:, :, 0], query[:, :, 0])


def test_float64_is_the_plain_formula():
  with jax.enable_x64(True):
    x = np.random.default_rng(0).normal(size=(2, 3, 1, 8))
    positions = np.array([[0, 5, 2**20], [3, 4, 2**19 + 1]])
    frequencies = encodings.rope_frequencies(8, 10000.0)
    out = rope.rotated(jnp.array(x), jnp.array(positions), frequencies, 1.5)
    assert out.dtype == jnp.float64
    for row in range(2):
      expected = 1.5 * turned(x[row, :, 0], positions[row], frequencies)
      np.testing.assert_allclose(out[row, :, 0], expected, atol=1e-9)


def test_bfloat16_keeps_positions_exact():
  x = jnp.ones((1, 1, 1, 4), jnp.bfloat16)
  positions = jnp.array([100_001])
  query, _ = dape_jax.Rope(1).rotate(x, x, positions, positions)
  assert query.dtype == jnp.bfloat16
  frequencies = encodings.rope_frequencies(4, 10000.0)
  expected = turned(np.ones((1, 4)), [100_001], frequencies)
  np.testing.assert_allclose(
      query[0, :, 0].astype(jnp.float32), expected, atol=0.01
  )


def test_invalid_rotations_are_rejected():
  x = jnp.zeros((1, 1, 1, 3))
  zero = jnp.array([0])
  with pytest.raises(dape_jax.ConfigError, match="head dim 3 is odd"):
    dape_jax.Rope(num_heads=1).rotate(x, x, zero, zero)
  with pytest.raises(dape_jax.ConfigError, match=r"fraction=0\.4: leaves no"):
    dape_jax.Rope(num_heads=1, fraction=0.4).rotate(x, x, zero, zero)
  for fraction in (0.0, 1.5):
    with pytest.raises(dape_jax.ConfigError, match=r"fraction=.* above 0"):
      dape_jax.Rope(num_heads=1, fraction=fraction)
