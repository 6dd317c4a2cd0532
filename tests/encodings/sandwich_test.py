import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dape_jax
from dape_jax.encodings import sandwich
from dape_jax.encodings.sandwich import Sandwich, sandwich_sum


def in_numpy(distances, num_heads, dimension):
  r = np.float64(distances)
  k = np.arange(1, dimension // 2 + 1)
  total = np.cos(r[..., None] / 10000 ** (2 * k / dimension)).sum(-1)
  h = np.arange(num_heads).reshape(-1, *[1] * r.ndim)
  return (total - dimension / 2) / (8 * (h + 1) / num_heads)


def test_near_and_far():
  dimension = 128
  encoding = Sandwich(num_heads=12)
  q_positions = np.array([0, 300, 70_000])
  kv_positions = np.array([0, 1, 299, 300, 50_000, 69_999, 70_000])
  bias = encoding.apply({}, q_positions, kv_positions, method="bias")
  distances = np.abs(q_positions[:, None] - kv_positions)
  expected = in_numpy(distances, 12, dimension)
  np.testing.assert_allclose(bias, expected, rtol=0, atol=1e-5 * dimension)
  same = np.broadcast_to(distances == 0, bias.shape)
  assert not np.asarray(bias)[same].any()


def test_far_sums_in_both_precisions():
  distances = np.concatenate([70_000 - np.arange(2000), [2**20, 2**30]])
  near = distances <= 70_000
  expected = 8 * in_numpy(distances, 1, 128)[0]
  with jax.enable_x64(True):
    in_integers = sandwich_sum(
        jnp.asarray(distances, jnp.int32), 128, "float32"
    )
    plain = sandwich_sum(
        jnp.asarray(distances, jnp.int32), 128, jnp.dtype("float64")
    )
  np.testing.assert_allclose(plain, expected, rtol=0, atol=1e-5)
  error = np.abs(np.asarray(in_integers) - expected)
  assert error[near].max() < 1e-5 * 128
  # 8e-10 radians of each of the 64 phases for each token of distance.
  assert (error < 64 * 8e-10 * distances + 1e-4).all()


def test_bias_depends_on_distance_only():
  encoding = Sandwich(num_heads=2, dimension=16)
  positions = np.arange(5)
  here, there = (
      encoding.apply({}, positions + p, positions + p, method="bias")
      for p in (0, 2**20)
  )
  np.testing.assert_array_equal(here, there)


def test_frequencies_and_invalid_dimensions():
  frequencies = sandwich.sandwich_frequencies(4)
  np.testing.assert_allclose(frequencies, [1e-2, 1e-4])
  for dimension in (0, 7, -2):
    with pytest.raises(dape_jax.ConfigError, match=f"dimension={dimension}"):
      Sandwich(num_heads=2, dimension=dimension)
