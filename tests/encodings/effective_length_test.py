import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dape_jax
from dape_jax.encodings.effective_length import (
    bias_of_distances,
    effective_lengths,
)
from dape_jax.encodings.kerple_power_family import KerplePower


def lengths_of(encoding, params, max_distance, **options):
  bias = bias_of_distances(encoding, {"params": params}, max_distance)
  return effective_lengths(bias, max_distance, **options)


def test_alibi():
  encoding = dape_jax.Alibi(num_heads=8)
  expected = [5, 9, 17, 33, 65, 129, 257, 513]
  np.testing.assert_array_equal(lengths_of(encoding, {}, 600), expected)
  # Chunks that end before, at and after a head's length; heads that never fall.
  expected = [5, 9, 17, 33, 65, 71, 71, 71]
  np.testing.assert_array_equal(
      lengths_of(encoding, {}, 70, chunk=33), expected
  )
  np.testing.assert_array_equal(lengths_of(encoding, {}, 0), [1] * 8)


@pytest.mark.parametrize("cls", [dape_jax.KerpleLog, KerplePower])
def test_closed_forms_of_kerple(cls):
  rng = np.random.default_rng(0)
  r1 = rng.uniform(0.3, 1, 12).astype(np.float32)
  r2 = rng.uniform(0.3, 1, 12).astype(np.float32)
  params = {"r1": jnp.asarray(r1), "r2": jnp.asarray(r2)}
  r1, r2 = np.float64(r1), np.float64(r2)
  if cls is KerplePower:
    exact = (2 / r1) ** (1 / r2)
  else:
    exact = (np.exp(2 / r1) - 1) / r2
  lengths = lengths_of(cls(num_heads=12), params, 2000, chunk=500)
  np.testing.assert_array_equal(lengths, np.floor(exact) + 1)


def test_a_million_tokens():
  r1 = jnp.array([2 / np.log(1 + 2**19 + 0.5), 2 / np.log(2.0**21)])
  params = {"r1": r1, "r2": jnp.ones(2)}
  lengths = lengths_of(dape_jax.KerpleLog(num_heads=2), params, 2**20)
  # The float32 rounding of the bias amounts to several tokens here.
  assert abs(int(lengths[0]) - (2**19 + 1)) < 20
  assert lengths[1] == 2**20 + 1


def test_fire_uses_the_last_query_position():
  encoding = dape_jax.Fire(num_heads=2, threshold=8.0)
  params = encoding.init(jax.random.key(0), method="score_mod")["params"]
  bias = bias_of_distances(encoding, {"params": params}, 100)
  params = jax.tree.map(np.asarray, params)
  distances = np.arange(101)
  x = np.log(0.1 * distances + 1) / (np.log(0.1 * 100 + 1) + 1e-6)
  hidden = x[:, None] @ params["kernel_0"] + params["bias_0"]
  expected = np.maximum(hidden, 0) @ params["kernel_1"] + params["bias_1"]
  np.testing.assert_allclose(bias(distances), expected.T, atol=1e-5)
