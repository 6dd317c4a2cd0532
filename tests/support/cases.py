"""Encodings with small random parameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from dape_jax import encodings

# One encoding for each way to modify queries, keys and scores;
# attention/encodings_test.py covers all names.
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
  return _make(name, num_heads, seed, jax.config.jax_enable_x64)


@functools.cache
def _make(name, num_heads, seed, enable_x64):
  del enable_x64  # Part of the cache's key only.
  options = encodings.options(name)
  overrides = {
      key: value
      for key, value in {"width": 8, "fire_width": 8, "threshold": 6.0}.items()
      if key in options
  }
  encoding = encodings.make(name, num_heads=num_heads, **overrides)

  @jax.jit
  def init():
    key = jax.random.key(seed)
    return encoding.init_with_output(key, method="score_mod")[0]

  return encoding, jax.tree.map(np.asarray, init())


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
