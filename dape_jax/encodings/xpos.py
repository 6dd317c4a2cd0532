"""xPos: RoPE with a decay in distance (Sun et al. 2022, arXiv 2212.10554)."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from dape_jax.encodings.position_limit import checked_positions
from dape_jax.encodings.rope import Rope, rotated
from dape_jax.errors import ConfigError

# float32 reaches 3e38 and 1e-38; the rest is headroom for queries and keys.
LARGEST_MAGNITUDE = 1e35


def xpos_zeta(head_dim: int, gamma: float) -> np.ndarray:
  """Returns zeta_k = (2k/H + gamma) / (1 + gamma), [H/2] float64.

  k = 0..H/2 - 1, as in the released code: the first pair decays fastest.
  """
  return (np.arange(0, head_dim, 2) / head_dim + gamma) / (1 + gamma)


class XPos(Rope):
  """RoPE's q_i times zeta_k^((i - c)/b), and its k_j times zeta_k^((c - j)/b).

  zeta_k = (2k/H + gamma) / (1 + gamma) of pair k, b = scale_base. Products of
  pair k decay as zeta_k^((i - j)/b) for any center c. Pairs are half-split like
  RoPE's; those of the released code are adjacent, which only reorders channels.
  For causal attention only: products with keys after the query would grow.

  Queries and keys are scaled separately, since keys are cached, and must stay
  within float32's range. Magnitudes reach 1e35 at position c + 64 b, 49,321 by
  default. Later positions raise an error, also under jit; under jit on TPU they
  yield NaN instead (see `checked_positions`). The released code sets c to half
  the length of the call, which is impossible with a cache. Far from c, small
  gradients of the fastest pair underflow: those below 1e-20 at a distance of
  32 b (such as position 0), and those below 1e-3 at 64 b, where scores of
  queries and keys of size 1e-2 are also off by 6%. Use a larger c for
  evaluation only; a trained model may be evaluated with any c. A negative
  position (no token) counts as 0. float16 is rejected.

  Source: Sun et al. 2022, algorithm 1, arXiv 2212.10554.
  Extrapolates: yes, with the authors' blockwise causal attention.

  Attributes:
    num_heads: N.
    rope_theta: base of the geometric frequencies.
    fraction: fraction of the head dim that is rotated and scaled.
    scale_base: b, in tokens.
    gamma: smallest zeta is gamma / (1 + gamma).
    center: c, the position of magnitude 1; scores do not depend on it.
  """

  scale_base: float = 512.0
  gamma: float = 0.4
  center: int = 16384

  def __post_init__(self):
    if self.scale_base <= 0:
      raise ConfigError(f"scale_base={self.scale_base}: must be above 0.")
    if self.gamma <= 0:
      raise ConfigError(f"gamma={self.gamma}: must be above 0.")
    if not 0 <= self.center <= self.reach():
      raise ConfigError(
          f"center={self.center}: must be in 0 to {self.reach()}, so that"
          " position 0 has a finite magnitude."
      )
    super().__post_init__()

  def reach(self) -> int:
    """Returns the largest supported distance from the center."""
    decay = -math.log(xpos_zeta(2, self.gamma)[0]) / self.scale_base
    return min(int(math.log(LARGEST_MAGNITUDE) / decay), 2**30 - 1)

  def last_position(self) -> int:
    """Returns the last supported position."""
    return self.center + self.reach()

  def position_limit(self):
    return self.last_position() + 1

  def magnitudes(
      self, positions: jax.Array, dim: int, dtype: jnp.dtype
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the factors of queries and of keys, [..., dim/2] each.

    Args:
      positions: int32, any shape; the result is NaN beyond `last_position`.
      dim: number of rotated channels.
      dtype: float32 or float64.
    """
    rates = np.log(xpos_zeta(dim, self.gamma)) / self.scale_base
    rates = rates.reshape((1,) * positions.ndim + (-1,)).astype(dtype)
    offsets = (positions - self.center).astype(dtype)
    offsets = jnp.where(positions <= self.last_position(), offsets, jnp.nan)
    exponents = offsets[..., None] * rates
    return jnp.exp(exponents), jnp.exp(-exponents)

  def rotate(self, query, key, q_positions, kv_positions):
    if query.dtype == jnp.float16:
      raise ConfigError(
          "dtype=float16: too narrow for xPos, whose queries and keys"
          " reach 1e35; use bfloat16 or float32."
      )
    dim = self.turned_channels(query.shape[-1])
    frequencies = self.frequencies(dim)
    last = self.last_position()

    def scaled(x, positions, role):
      positions = checked_positions(
          jnp.maximum(jnp.asarray(positions, jnp.int32), 0),
          last + 1,
          f"xPos of scale_base={self.scale_base} and center={self.center} stays"
          f" within float32 up to position {last} only. Use shorter text, or"
          f" raise center to at most {self.reach()}: that raises the limit by"
          " as much and changes no score.",
          beside=x,
      )
      dtype = jnp.promote_types(x.dtype, jnp.float32)
      magnitude = self.magnitudes(positions, dim, dtype)[role]
      return rotated(x, positions, frequencies, magnitude)

    return scaled(query, q_positions, 0), scaled(key, kv_positions, 1)
