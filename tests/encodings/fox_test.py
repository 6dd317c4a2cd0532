"""FoX against plain float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import token_cases

from dape_jax.encodings.fox import Fox
from dape_jax.encodings.token_features import running_sum

ENCODING = Fox(num_heads=token_cases.HEADS)


def test_bias():
  params = token_cases.random_params(ENCODING)
  inputs = token_cases.tokens(0, 1, 12)
  positions = jnp.arange(12)
  bias = token_cases.bias(ENCODING, params, inputs, positions, positions)
  logits = np.float64(inputs[0][0]) @ params["kernel"] + params["bias"]
  log_gates = np.log(1 / (1 + np.exp(-logits)))
  expected = np.zeros((token_cases.HEADS, 12, 12))
  for i in range(12):
    for j in range(12):
      between = log_gates[min(i, j) + 1 : max(i, j) + 1]
      expected[:, i, j] = between.sum(0)
  np.testing.assert_allclose(bias, expected, atol=5e-6)


def test_initial_values():
  params = token_cases.initial_params(Fox(num_heads=50), 100, head_dim=1)
  assert params["kernel"].shape == (100, 50)
  np.testing.assert_allclose(params["kernel"].std(), 0.02, rtol=0.05)
  assert not params["bias"].any()


def test_extreme_gates_are_finite():
  params = {"kernel": jnp.full((1, 1), 1e4), "bias": jnp.zeros(1)}
  x = jnp.array([-1.0, 1.0, 0.0]).reshape(1, 3, 1)

  def total(x):
    return (
        Fox(num_heads=1)
        .apply({"params": params}, x, x, x, method="features")[0]
        .sum()
    )

  value, gradient = jax.value_and_grad(total)(x)
  np.testing.assert_allclose(value, -3e4 - np.log(2), rtol=1e-6)
  assert np.isfinite(gradient).all()


def test_rounding_far_out():
  """At 700,000 tokens, where a plain float32 sum is off by 0.1."""
  rng = np.random.default_rng(0)
  steps = np.float32(-np.log1p(np.exp(rng.normal(size=(1, 700_000, 1)))))
  coarse, fine = np.split(running_sum(steps), 2, axis=-1)
  near, far = np.arange(0, 699_000, 997), np.arange(1000, 700_000, 997)
  ours = (coarse[0, far] - coarse[0, near]) + (fine[0, far] - fine[0, near])
  exact = np.cumsum(np.float64(steps), axis=1)[0]
  np.testing.assert_allclose(ours, exact[far] - exact[near], atol=1e-4)


def test_missing_features():
  with pytest.raises(ValueError, match="pass the q_features"):
    ENCODING.apply({}, jnp.arange(2), jnp.arange(2), method="bias")
