"""Score modifiers in custom attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dape_jax
from dape_jax import encodings

LENGTH = 9


def inputs(name):
  encoding = encodings.make(name, num_heads=2)
  variables = encoding.init(jax.random.key(0), method="score_mod")
  qkv = jax.random.normal(jax.random.key(1), (3, 2, LENGTH, 2, 4))
  return encoding.bind(variables), qkv


@pytest.mark.parametrize("name", ["kerple_log", "dape_fire", "dape_v2_alibi"])
def test_scores_of_the_whole_matrix(name):
  """With [B, T, N, H] arrays, as in jax.nn.dot_product_attention."""
  encoding, (query, key, value) = inputs(name)
  positions = jnp.arange(LENGTH)

  scores = jnp.einsum("btnh,bsnh->bnts", query, key) / 2
  scores = encoding.score_mod()(scores, positions, positions)
  scores = jnp.where(jnp.tri(LENGTH, dtype=bool)[None, None], scores, -jnp.inf)
  weights = jax.nn.softmax(scores, axis=-1)
  ours = jnp.einsum("bnts,bsnh->btnh", weights, value)

  expected = dape_jax.attend(encoding, query, query, key, value)
  np.testing.assert_allclose(ours, expected, atol=2e-6)


def test_a_static_bias_goes_into_jax_attention():
  encoding, (query, key, value) = inputs("fire")
  positions = jnp.arange(LENGTH)
  ours = jax.nn.dot_product_attention(
      query,
      key,
      value,
      bias=encoding.bias(positions, positions)[None],
      is_causal=True,
  )
  expected = dape_jax.attend(encoding, query, query, key, value)
  np.testing.assert_allclose(ours, expected, atol=2e-6)


def test_positions_and_visibility_of_each_batch_element():
  encoding, _ = inputs("dape_v2_kerple_log")
  score_mod = encoding.score_mod()
  scores = jax.random.normal(jax.random.key(2), (2, 2, LENGTH, LENGTH))
  positions = jnp.stack([jnp.arange(LENGTH), 5 + jnp.arange(LENGTH)])
  visible = jnp.stack([jnp.tri(LENGTH), jnp.ones((LENGTH, LENGTH))]) > 0
  both = score_mod(scores, positions, positions, visible=visible)
  for b in range(2):
    alone = score_mod(scores[b], positions[b], positions[b], visible=visible[b])
    np.testing.assert_allclose(both[b], alone, atol=1e-6)
