"""Encodings with small random parameters."""

import jax
import jax.numpy as jnp

from dape_jax import encodings

# One of each way to act on queries, keys and scores; all names are in
# attention/encodings_test.py.
NAMES = (
    "nope",
    "rope",
    "alibi",
    "fire",
    "dape_kerple_log",
    "dape_fire",
    "dape_v2_kerple_log",
)


def make(name, num_heads, seed=0):
  """Returns (encoding, score modifier or None) with random parameters."""
  options = encodings.options(name)
  overrides = {
      key: value
      for key, value in {"width": 8, "fire_width": 8, "threshold": 6.0}.items()
      if key in options
  }
  encoding = encodings.make(name, num_heads=num_heads, **overrides)
  score_mod, variables = encoding.init_with_output(
      jax.random.key(seed), method="score_mod"
  )
  del variables
  return encoding, score_mod


def qkv(seed, batch, length, num_heads, head_dim, dtype=jnp.float32):
  """Returns random query, key and value [B, T, N, H]."""
  keys = jax.random.split(jax.random.key(seed), 3)
  shape = (batch, length, num_heads, head_dim)
  return tuple(jax.random.normal(key, shape, dtype) for key in keys)


def attend(encoding, score_mod, query, key, value, positions, **kwargs):
  """Returns attention with the encoding's rotation and score modifier."""
  from dape_jax import attention

  query, key = encoding.rotate(query, key, positions, positions)
  return attention(
      query,
      key,
      value,
      score_mod,
      q_positions=positions,
      kv_positions=positions,
      **kwargs,
  )
