import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dape_jax
from dape_jax import encodings


def test_frequencies():
  expected = 10000.0 ** (-np.arange(0, 64, 2) / 64)
  np.testing.assert_allclose(
      encodings.rope_frequencies(64, 10000.0), expected, rtol=1e-6
  )


@hypothesis.given(
    st.integers(0, 60_000), st.integers(0, 2000), st.integers(0, 2000)
)
@hypothesis.settings(deadline=None, max_examples=25)
def test_products_depend_on_the_difference_of_positions(shift, i, j):
  rope = dape_jax.Rope(num_heads=1)
  x = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 16))

  def product(i, j):
    query, key = rope.rotate(x[0], x[1], jnp.array([i]), jnp.array([j]))
    return float(jnp.sum(query * key))

  # Angles of float32 are exact to 2^-24 of the position.
  np.testing.assert_allclose(
      product(i + shift, j + shift), product(i, j), atol=0.05
  )
  np.testing.assert_allclose(
      product(i, i), float(jnp.sum(x[0] * x[1])), rtol=1e-4
  )


def test_half_split_pairs():
  x = jnp.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 1, 4)
  rope = dape_jax.Rope(num_heads=1, rope_theta=100.0)
  query, _ = rope.rotate(x, x, jnp.array([3]), jnp.array([0]))
  a, b = 3.0, 0.3
  expected = [
      np.cos(a) - 3 * np.sin(a),
      2 * np.cos(b) - 4 * np.sin(b),
      3 * np.cos(a) + np.sin(a),
      4 * np.cos(b) + 2 * np.sin(b),
  ]
  np.testing.assert_allclose(query.ravel(), expected, rtol=1e-5)


def test_odd_head_dim_is_refused():
  x = jnp.zeros((1, 1, 1, 3))
  with pytest.raises(dape_jax.ConfigError, match="head dim 3 is odd"):
    dape_jax.Rope(num_heads=1).rotate(x, x, jnp.array([0]), jnp.array([0]))
