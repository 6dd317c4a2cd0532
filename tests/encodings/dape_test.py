"""The score networks against loops over pairs in float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dape_jax
from dape_jax import encodings

LENGTH, HEADS = 9, 3


def leaky(x):
  return np.where(x > 0, x, 0.01 * x)


def case(name, **options):
  encoding = encodings.make(name, num_heads=HEADS, width=5, **options)
  score_mod, variables = encoding.init_with_output(
      jax.random.key(1), method="score_mod"
  )
  params = jax.tree.map(np.float64, score_mod.params)
  positions = jnp.arange(LENGTH)
  bias = encoding.apply(variables, positions, positions, method="bias")
  scores = jax.random.normal(jax.random.key(2), (HEADS, LENGTH, LENGTH))
  halo = score_mod.halo
  widths = [(0, 0), (0, 0), (halo, halo)]
  kv_positions = jnp.pad(positions, widths[2:], constant_values=-1)
  tile = dape_jax.Tile(positions[:, None], kv_positions[None, :])
  ours = score_mod.apply(score_mod.params, jnp.pad(scores, widths), tile)
  return params, np.float64(scores), np.float64(bias), np.asarray(ours)


@pytest.mark.parametrize("name", ["dape_kerple_log", "dape_rope"])
def test_dape(name):
  params, scores, bias, ours = case(name)
  for i in range(LENGTH):
    for j in range(i + 1):
      x = scores[:, i, j]
      if name == "dape_kerple_log":
        x = np.concatenate([x, bias[:, i, j]])
      hidden = leaky(x @ params["hidden_kernel"] + params["hidden_bias"])
      expected = (scores + bias)[:, i, j] + hidden @ params["output_kernel"]
      np.testing.assert_allclose(ours[:, i, j], expected, atol=1e-5)


@pytest.mark.parametrize("edge", ["extend", "zero"])
@pytest.mark.parametrize("kernel_size", [1, 3, 5])
def test_dape_v2(kernel_size, edge):
  params, scores, bias, ours = case(
      "dape_v2_kerple_log", kernel_size=kernel_size, edge=edge
  )
  pad = kernel_size // 2

  def hidden_at(i, j):
    if j < 0 or (edge == "zero" and j >= LENGTH):
      return np.zeros(5)
    total = params["hidden_bias"].copy()
    for k in range(kernel_size):
      column = j + k - pad
      if 0 <= column <= i:
        x = np.concatenate([scores[:, i, column], bias[:, i, column]])
        total += x @ params["hidden_kernel"][k]
    return leaky(total)

  for i in range(LENGTH):
    for j in range(i + 1):
      expected = (scores + bias)[:, i, j]
      for k in range(kernel_size):
        expected = (
            expected + hidden_at(i, j + k - pad) @ params["output_kernel"][k]
        )
      np.testing.assert_allclose(ours[:, i, j], expected, atol=1e-5)


def test_network_has_pytorch_default_initialization():
  encoding = dape_jax.DapeV2(dape_jax.KerpleLog(num_heads=64), width=128)
  params = encoding.init(jax.random.key(0), method="score_mod")["params"]
  for name, fan_in in (
      ("hidden_kernel", 128 * 3),
      ("hidden_bias", 128 * 3),
      ("output_kernel", 128 * 3),
  ):
    largest = float(jnp.abs(params[name]).max())
    assert 0.9 * fan_in**-0.5 < largest <= fan_in**-0.5


@pytest.mark.parametrize("name", ["dape_fire", "dape_v2_fire"])
def test_base_parameters_live_under_the_wrapper(name):
  encoding = encodings.make(name, num_heads=2)
  params = encoding.init(jax.random.key(0), method="score_mod")["params"]
  assert set(params) == {
      "base",
      "hidden_kernel",
      "hidden_bias",
      "output_kernel",
  }
  assert {"c", "m", "kernel_0", "bias_1"} <= set(params["base"])
