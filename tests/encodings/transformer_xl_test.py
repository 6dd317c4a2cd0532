"""Transformer-XL against its formula in float64, one pair at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import token_cases

import dape_jax
from dape_jax.encodings.transformer_xl import TransformerXL

HEADS, HEAD_DIM = token_cases.HEADS, token_cases.HEAD_DIM
ENCODING = TransformerXL(num_heads=HEADS)


def expected_bias(params, inputs, width, q_positions, kv_positions):
  _, query, key, _ = (np.float64(x[0]) for x in inputs)
  u, v, kernel = (np.float64(params[name]) for name in ("u", "v", "kernel"))
  frequencies = 10000.0 ** (-np.arange(0, width, 2) / width)
  out = np.zeros((HEADS, len(query), len(key)))
  for h in range(HEADS):
    k = key[:, h // (HEADS // token_cases.KV_HEADS)]
    for a, i in enumerate(q_positions):
      for b, j in enumerate(kv_positions):
        angles = (i - j) * frequencies
        sinusoids = np.concatenate([np.sin(angles), np.cos(angles)])
        of_distance = (query[a, h] + v[h]) @ (sinusoids @ kernel[:, h])
        out[h, a, b] = (u[h] @ k[b] + of_distance) / np.sqrt(HEAD_DIM)
  return out


@pytest.mark.parametrize("width", [0, 10])
def test_bias(width):
  encoding = TransformerXL(num_heads=HEADS, sinusoid_width=width)
  width = width or token_cases.WIDTH
  params = token_cases.random_params(encoding)
  inputs = token_cases.tokens(0, 1, 9)
  positions = np.arange(9) * 7
  np.testing.assert_allclose(
      token_cases.bias(encoding, params, inputs, positions, positions),
      expected_bias(params, inputs, width, positions, positions),
      atol=5e-6,
  )
  # Positions whose product with a frequency float32 cannot represent.
  far = positions + 2**20
  np.testing.assert_allclose(
      token_cases.bias(encoding, params, inputs, far, far),
      expected_bias(params, inputs, width, far, far),
      atol=5e-6,
  )


def test_is_the_papers_score_with_attentions_scale():
  params = token_cases.random_params(ENCODING)
  inputs = token_cases.tokens(1, 1, 6)
  positions = np.arange(6)
  out = token_cases.jit(token_cases.attended, static_argnums=0)(
      ENCODING, params, inputs, positions
  )
  _, query, key, value = (np.float64(x[0]) for x in inputs)
  key, value = (np.repeat(x, 2, axis=1) for x in (key, value))
  scores = np.einsum("tnh,snh->nts", query, key) / np.sqrt(HEAD_DIM)
  scores += expected_bias(
      params, inputs, token_cases.WIDTH, positions, positions
  )
  weights = np.exp(np.where(np.tri(6, dtype=bool), scores, -np.inf))
  weights /= weights.sum(-1, keepdims=True)
  expected = np.einsum("nts,snh->tnh", weights, value)
  np.testing.assert_allclose(out[0], expected, atol=3e-6)


def test_initial_values():
  params = token_cases.initial_params(TransformerXL(num_heads=8), 16, 32)
  shapes = {"u": (8, 32), "v": (8, 32), "kernel": (16, 8, 32)}
  assert {name: x.shape for name, x in params.items()} == shapes
  for x in params.values():
    np.testing.assert_allclose(x.std(), 0.02, rtol=0.15)


def test_odd_widths_are_rejected():
  with pytest.raises(dape_jax.ConfigError, match="sinusoid_width=3"):
    TransformerXL(num_heads=1, sinusoid_width=3)
  x = jnp.zeros((1, 1, 5))
  with pytest.raises(dape_jax.ConfigError, match="and 5 is odd"):
    ENCODING.init(jax.random.key(0), x, x, x, method="features")
