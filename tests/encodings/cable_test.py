"""CABLE against plain float64 NumPy and against FoX with negated logits."""

import jax.numpy as jnp
import numpy as np
import token_cases

from dape_jax.encodings.cable import Cable
from dape_jax.encodings.fox import Fox

ENCODING = Cable(num_heads=token_cases.HEADS)


def test_bias_both_ways():
  params = token_cases.random_params(ENCODING)
  inputs = token_cases.tokens(0, 1, 12)
  positions = jnp.arange(12)
  bias = token_cases.bias(ENCODING, params, inputs, positions, positions)
  logits = np.float64(inputs[0][0]) @ params["kernel"] + params["bias"]
  c = np.cumsum(-np.log(1 + np.exp(logits)), axis=0).T
  expected = -np.abs(c[:, :, None] - c[:, None, :])
  np.testing.assert_allclose(bias, expected, atol=5e-6)


def test_is_fox_of_the_opposite_sign():
  params = token_cases.random_params(ENCODING)
  inputs = token_cases.tokens(0, 2, 5)[:3]
  ours, _ = token_cases.features(ENCODING, params, *inputs)
  opposite = {name: -x for name, x in params.items()}
  fox, _ = token_cases.features(
      Fox(num_heads=token_cases.HEADS), opposite, *inputs
  )
  np.testing.assert_allclose(ours, fox, rtol=1e-6)
