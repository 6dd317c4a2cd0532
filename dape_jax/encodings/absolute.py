"""Absolute position encodings, sinusoidal and learned."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from dape_jax.encodings.base import PositionalEncoding
from dape_jax.encodings.phases import phases, sinusoid_frequencies
from dape_jax.encodings.position_limit import checked_positions
from dape_jax.errors import ConfigError


def sinusoids(
    positions: jax.Array, width: int, dtype: jnp.dtype = jnp.float32
) -> jax.Array:
  """Returns interleaved sin(i w_k) and cos(i w_k), [..., D].

  w_k = 10000^(-2k/D). Angles are exact at large positions, see `phases`.

  Args:
    positions: int32, any shape.
    width: D, even.
    dtype: float32 or float64.
  """
  if width % 2:
    raise ConfigError(
        f"width={width}: must be even, since sinusoids come in pairs of sine"
        " and cosine."
    )
  angles = phases(positions, sinusoid_frequencies(width), dtype)
  pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
  return pairs.reshape(*positions.shape, width)


def _plus(x_BxTxD: jax.Array, added: jax.Array) -> jax.Array:
  if added.ndim == 2:
    added = added[None]
  return (x_BxTxD.astype(added.dtype) + added).astype(x_BxTxD.dtype)


class Sinusoidal(PositionalEncoding):
  """x_i + [sin(i w_0), cos(i w_0), sin(i w_1), ...], w_k = 10000^(-2k/D).

  x_i is the embedded token at position i and D its width. No parameters. The
  sum is computed in float32, then rounded to x's dtype. The paper first
  multiplies x by sqrt(D); here x is used unchanged. Keys after the query are
  treated like any other.

  Source: Vaswani et al. 2017, section 3.5, arXiv 1706.03762.
  Extrapolates: possibly, according to the authors.

  Attributes:
    num_heads: N, heads of the model's attention; not used here.
  """

  num_heads: int

  is_absolute: ClassVar[bool] = True

  def embed(self, x, positions):
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    positions = jnp.asarray(positions, jnp.int32)
    return _plus(x, sinusoids(positions, x.shape[-1], dtype))


class Learned(PositionalEncoding):
  """x_i + table_i, for positions i below max_length.

  x_i is the embedded token at position i. The parameter `table`
  [max_length, D], N(0, 0.02^2) at init, is created by `init` through `embed`.
  The sum is computed in float32, then rounded to x's dtype. Positions outside
  the table raise an error, also under jit; under jit on TPU they yield NaN
  instead (see `checked_positions`). Keys after the query are treated like any
  other.

  Source: Gehring et al. 2017, section 3.1, arXiv 1705.03122.
  Extrapolates: no, max_length is a hard limit.

  Attributes:
    num_heads: N, heads of the model's attention; not used here.
    max_length: rows of the table.
  """

  num_heads: int
  max_length: int = 512

  is_absolute: ClassVar[bool] = True

  def __post_init__(self):
    if self.max_length < 1:
      raise ConfigError(f"max_length={self.max_length}: must be 1 or more.")
    super().__post_init__()

  def position_limit(self):
    return self.max_length

  @nn.compact
  def embed(self, x, positions):
    table = self.param(
        "table",
        nn.initializers.normal(0.02),
        (self.max_length, x.shape[-1]),
    )
    positions = checked_positions(
        positions,
        self.max_length,
        f"a learned table of max_length={self.max_length} has rows for 0 to"
        f" {self.max_length - 1} only. Use shorter text, or train with a"
        " larger max_length.",
        beside=x,
    )
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    table = jnp.asarray(table, dtype)
    positions = jnp.asarray(positions, jnp.int32)
    # NaN for positions outside the table that the check could not reject.
    rows = table.at[positions].get(mode="fill", fill_value=jnp.nan)
    return _plus(x, rows)
