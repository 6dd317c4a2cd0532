import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dape_jax
from dape_jax.encodings.xpos import XPos, xpos_zeta

H = 8
XPOS = XPos(num_heads=1)
X = np.random.default_rng(0).normal(size=(2, 1, H)).astype(np.float32)


def released(q, k, i, j, head_dim=H, scale_base=512.0, gamma=0.4):
  """q_i . k_j by the released code's formulas, with adjacent pairs."""
  scale = (np.arange(0, head_dim, 2) + gamma * head_dim) / (
      (1 + gamma) * head_dim
  )
  frequencies = 10000.0 ** (-np.arange(0, head_dim, 2) / head_dim)

  def turned(x, position, sign):
    x = np.float64(x)[0::2] + 1j * np.float64(x)[1::2]
    scaled = scale ** (sign * position / scale_base)
    return x * scaled * np.exp(1j * position * frequencies)

  product = turned(q, i, 1) * np.conj(turned(k, j, -1))
  return product.real.sum()


def half_split(x):
  return np.concatenate([x[..., 0::2], x[..., 1::2]], -1)


@jax.jit
def turned(x, i, j):
  return XPOS.rotate(x[0][None, :, None], x[1][None, :, None], i, j)


@jax.jit
def product(x, i, j):
  query, key = turned(x, i, j)
  return jnp.sum(query * key)


@hypothesis.given(st.integers(0, 49_321), st.integers(0, 4000))
@hypothesis.settings(deadline=None, max_examples=25, derandomize=True)
def test_products_match_the_released_code_at_any_position(i, distance):
  j = max(i - distance, 0)
  x = half_split(X)
  ours = product(x, jnp.array([i], jnp.int32), jnp.array([j], jnp.int32))
  # The released code, near its center.
  expected = released(X[0, 0], X[1, 0], i - j, 0)
  np.testing.assert_allclose(ours, expected, atol=5e-5)


def test_zeta():
  expected = (np.arange(0, 64, 2) + 0.4 * 64) / (1.4 * 64)
  np.testing.assert_allclose(xpos_zeta(64, 0.4), expected, rtol=1e-12)


def test_scores_do_not_depend_on_the_center():
  i, j = jnp.array([700]), jnp.array([650])
  x = half_split(X)[:, None, None]
  for center in (0, 32_937):
    query, key = XPos(1, center=center).rotate(x[0], x[1], i, j)
    np.testing.assert_allclose(
        jnp.sum(query * key), released(X[0, 0], X[1, 0], 700, 650), atol=2e-5
    )


def test_magnitudes_stay_within_float32_to_both_ends():
  ends = jnp.array([0, 49_321], jnp.int32)
  for center, last in ((16_384, 49_321), (32_937, 65_874)):
    encoding = XPos(1, center=center)
    assert encoding.last_position() == last
    ends = jnp.array([0, last], jnp.int32)
    for magnitude in encoding.magnitudes(ends, 64, jnp.float32):
      assert magnitude.min() >= 0.9e-35 and magnitude.max() <= 1.1e35
  assert XPos(1, scale_base=8192.0).last_position() > 2**19


def test_tiny_gradients_survive_where_models_are_trained():
  x = jnp.asarray(half_split(X))
  cotangent = 1e-14
  for i in (0, 511):
    i = jnp.array([i], jnp.int32)
    grads = jax.grad(lambda x, i=i: cotangent * product(x, i, i))(x)
    np.testing.assert_allclose(grads, cotangent * x[::-1], rtol=2e-5)


def test_positions_beyond_float32_raise():
  x = half_split(X)
  last, beyond = jnp.array([49_321]), jnp.array([49_322])
  message = "position 49322: xPos of scale_base=512.0 and center=16384 stays"
  np.testing.assert_allclose(
      product(x, last, last), np.sum(X[0] * X[1]), rtol=1e-4
  )
  for positions in ((beyond, last), (last, beyond)):
    with pytest.raises(dape_jax.ConfigError, match=message):
      XPOS.rotate(x[0][None, :, None], x[1][None, :, None], *positions)
    with pytest.raises(Exception, match="at most 32937"):
      jax.block_until_ready(product(x, *positions))
  for magnitude in XPOS.magnitudes(beyond, H, jnp.float32):
    assert np.isnan(magnitude).all()


def test_missing_keys_count_as_position_0():
  x = half_split(X)
  none, zero = jnp.array([-1]), jnp.array([0])
  for a, b in zip(turned(x, none, none), turned(x, zero, zero)):
    np.testing.assert_array_equal(a, b)


def test_invalid_settings_are_rejected():
  for options, message in (
      ({"scale_base": 0.0}, "scale_base=0.0: must be above 0"),
      ({"gamma": 0.0}, "gamma=0.0: must be above 0"),
      ({"center": -1}, "center=-1: must be in 0 to 32937"),
      ({"scale_base": 128.0}, "center=16384: must be in 0 to 8234"),
      ({"rope_theta": 0.0}, "rope_theta=0.0"),
  ):
    with pytest.raises(dape_jax.ConfigError, match=message):
      XPos(num_heads=1, **options)
  x, zero = jnp.zeros((1, 1, 1, 4), jnp.float16), jnp.array([0])
  with pytest.raises(dape_jax.ConfigError, match="float16: too narrow"):
    XPOS.rotate(x, x, zero, zero)
