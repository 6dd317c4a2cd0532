"""RoPE: rotary position embedding (Su et al. 2021, arXiv 2104.09864)."""

import jax
import jax.numpy as jnp

from dape_jax.encodings.base import PositionalEncoding
from dape_jax.errors import ConfigError


def rope_frequencies(head_dim: int, theta: float) -> jax.Array:
  """Returns theta^(-2k / H) for k = 0..H/2 - 1, [H/2] float32 radians/token."""
  exponents = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
  return 1.0 / theta**exponents


def rotated(
    x_BxTxNxH: jax.Array, positions: jax.Array, frequencies: jax.Array
) -> jax.Array:
  """Returns x with the pairs (k, k + H/2) turned by position * frequency_k.

  The half-split pairing of GPT-NeoX and Llama. Angles are float32 (or wider).

  Args:
    x_BxTxNxH: queries or keys.
    positions: [T] or [B, T] int32.
    frequencies: [H/2] radians per token.
  """
  dtype = jnp.promote_types(x_BxTxNxH.dtype, jnp.float32)
  angles = positions[..., None].astype(dtype) * frequencies.astype(
      dtype
  ).reshape((1,) * positions.ndim + (-1,))
  if positions.ndim == 1:
    angles = angles[None]
  cos, sin = (f(angles)[:, :, None, :] for f in (jnp.cos, jnp.sin))
  first, second = jnp.split(x_BxTxNxH.astype(dtype), 2, axis=-1)
  out = jnp.concatenate(
      [first * cos - second * sin, second * cos + first * sin], axis=-1
  )
  return out.astype(x_BxTxNxH.dtype)


class Rope(PositionalEncoding):
  """q_i and k_j turned by i and j times theta^(-2k/H) (arXiv 2104.09864).

  Attributes:
    num_heads: N.
    rope_theta: base of the geometric frequencies.
  """

  num_heads: int
  rope_theta: float = 10000.0

  def __post_init__(self):
    if self.rope_theta <= 0:
      raise ConfigError(f"rope_theta={self.rope_theta}: must be above 0.")
    super().__post_init__()

  def rotate(self, query, key, q_positions, kv_positions):
    head_dim = query.shape[-1]
    if head_dim % 2:
      raise ConfigError(
          f"RoPE turns pairs of channels, and head dim {head_dim} is odd;"
          " choose width / num_heads even."
      )
    frequencies = rope_frequencies(head_dim, self.rope_theta)
    return (
        rotated(query, q_positions, frequencies),
        rotated(key, kv_positions, frequencies),
    )
