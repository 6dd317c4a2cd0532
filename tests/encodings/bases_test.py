"""The static biases against plain float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dape_jax
from dape_jax import encodings

DISTANCES = np.maximum(np.arange(300)[:, None] - np.arange(300)[None], 0)
CAUSAL = np.tril(np.ones((300, 300), bool))


def initialised(encoding, seed=0):
  variables = encoding.init(jax.random.key(seed), method="score_mod")
  return variables.get("params", {})


def causal_bias(encoding, params):
  positions = jnp.arange(300)
  bias = encoding.apply({"params": params}, positions, positions, method="bias")
  return np.where(CAUSAL, np.asarray(bias), 0)


def test_alibi_slopes_of_12_heads():
  expected = [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125]
  expected += [0.00390625, 0.70711, 0.35355, 0.17678, 0.08839]
  np.testing.assert_allclose(encodings.alibi_slopes(12), expected, atol=5e-6)


def test_alibi():
  bias = causal_bias(dape_jax.Alibi(num_heads=12), {})
  expected = -encodings.alibi_slopes(12)[:, None, None] * DISTANCES
  np.testing.assert_allclose(bias, expected, rtol=1e-6)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("slope", [0.0, 0.01])
def test_fire(layers, slope):
  encoding = dape_jax.Fire(
      num_heads=3, threshold=40.0, fire_layers=layers, negative_slope=slope
  )
  params = initialised(encoding)
  params["c"], params["m"] = jnp.float32(-0.3), jnp.float32(1.7)
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  i = np.arange(300)[:, None]
  x = np.log(np.abs(p["c"] * DISTANCES) + 1) / (
      np.log(np.abs(p["c"] * np.maximum(i, 40 * 1.7)) + 1) + 1e-6
  )
  x = x[..., None]
  for k in range(layers + 1):
    x = x @ p[f"kernel_{k}"] + p[f"bias_{k}"]
    if k < layers:
      x = np.where(x > 0, x, slope * x)
  expected = np.where(CAUSAL, np.moveaxis(x, -1, 0), 0)
  np.testing.assert_allclose(causal_bias(encoding, params), expected, atol=5e-6)


@pytest.mark.parametrize("name", ["nope", "rope", "dape_nope"])
def test_encodings_without_a_static_bias(name):
  encoding = encodings.make(name, num_heads=2)
  params = initialised(encoding)
  assert not causal_bias(encoding, params).any()
