"""RoPE: rotary position embedding (Su et al. 2021, arXiv 2104.09864)."""

import jax
import jax.numpy as jnp
import numpy as np

from dape_jax.encodings.base import PositionalEncoding
from dape_jax.encodings.phases import phases, sinusoid_frequencies
from dape_jax.errors import ConfigError


def rope_frequencies(head_dim: int, theta: float) -> np.ndarray:
  """Returns theta^(-2k/H) for k = 0..H/2 - 1, [H/2] float64 radians/token."""
  return sinusoid_frequencies(head_dim, theta)


def rotated(
    x_BxTxNxH: jax.Array,
    positions: jax.Array,
    frequencies: np.ndarray,
    magnitude: float | jax.Array = 1.0,
) -> jax.Array:
  """Returns x with the pairs (k, k + F) rotated by position * frequency_k.

  Pairs are half-split as in GPT-NeoX and Llama. Channels from 2F on are not
  rotated. Angles are exact, see `phases`; the rest is float32 (or wider).

  Args:
    x_BxTxNxH: queries or keys.
    positions: [T] or [B, T] int32.
    frequencies: [F] float64 radians per token, static; F is H/2 or less.
    magnitude: factor of rotated pairs, a number or [*positions.shape, F].
  """
  dtype = jnp.promote_types(x_BxTxNxH.dtype, jnp.float32)
  positions = jnp.asarray(positions, jnp.int32)
  angles = phases(positions, frequencies, dtype)
  cos, sin = magnitude * jnp.cos(angles), magnitude * jnp.sin(angles)
  if positions.ndim == 1:
    cos, sin = cos[None], sin[None]
  cos, sin = cos[:, :, None, :], sin[:, :, None, :]
  pairs = len(frequencies)
  first, second, rest = jnp.split(
      x_BxTxNxH.astype(dtype), (pairs, 2 * pairs), axis=-1
  )
  out = jnp.concatenate(
      [first * cos - second * sin, second * cos + first * sin, rest], axis=-1
  )
  return out.astype(x_BxTxNxH.dtype)


class Rope(PositionalEncoding):
  """q_i and k_j rotated by i and j times theta^(-2k/d), in pairs (k, k + d/2).

  d is the head dim H, or its first `fraction`; the other channels are not
  rotated. Pairs are half-split as in GPT-NeoX and Llama; the paper's adjacent
  pairs are the same up to the order of channels. Scores depend only on i - j,
  at any position (angles are computed in integers), also for keys after the
  query.

  Source: Su et al. 2021, section 3.2.2, arXiv 2104.09864.
  Extrapolates: no.

  Attributes:
    num_heads: N.
    rope_theta: base of the geometric frequencies.
    fraction: fraction of the head dim that is rotated, rounded down to whole
      pairs (GPT-NeoX's rotary_pct).
  """

  num_heads: int
  rope_theta: float = 10000.0
  fraction: float = 1.0

  def __post_init__(self):
    if self.rope_theta <= 0:
      raise ConfigError(f"rope_theta={self.rope_theta}: must be above 0.")
    if not 0 < self.fraction <= 1:
      raise ConfigError(
          f"fraction={self.fraction}: must be above 0, and 1 or less."
      )
    super().__post_init__()

  def frequencies(self, dim: int) -> np.ndarray:
    """Returns radians per token of `dim` rotated channels, [dim/2] float64."""
    return rope_frequencies(dim, self.rope_theta)

  def magnitude(self) -> float:
    """Returns the factor of rotated queries and of rotated keys."""
    return 1.0

  def turned_channels(self, head_dim: int) -> int:
    """Returns the even number of channels, the first ones, that are rotated."""
    if head_dim % 2 and self.fraction == 1:
      raise ConfigError(
          f"RoPE rotates pairs of channels, but head dim {head_dim} is odd;"
          " make width / num_heads even."
      )
    pairs = int(self.fraction * head_dim) // 2
    if not pairs:
      raise ConfigError(
          f"fraction={self.fraction}: leaves no pair of channels to rotate in"
          f" head dim {head_dim}; increase it."
      )
    return 2 * pairs

  def rotate(self, query, key, q_positions, kv_positions):
    frequencies = self.frequencies(self.turned_channels(query.shape[-1]))
    magnitude = self.magnitude()
    return (
        rotated(query, q_positions, frequencies, magnitude),
        rotated(key, kv_positions, frequencies, magnitude),
    )
