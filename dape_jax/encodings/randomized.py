"""Randomized positions (Ruoss et al. 2023, arXiv 2305.16843)."""

import jax
import jax.numpy as jnp

from dape_jax.array_typing import Positions
from dape_jax.errors import ConfigError


def randomized_positions(
    key: jax.Array,
    positions: Positions,
    max_length: int,
    batch_size: int | None = None,
) -> Positions:
  """Returns sorted random positions from 0..max_length - 1.

  Each row samples one position per token of its longest document, uniformly
  without replacement, and sorts them. The token at position p of its document
  gets the p-th, regardless of padding. A model trained on short text thereby
  sees the positions of long text (section 3). For training only; evaluate with
  the original positions.

  Args:
    key: `jax.random` key.
    positions: [T] or [B, T] int32, positions within documents, below T.
      Negative positions (no token) are kept. Positions of T or more, which
      rows of complete documents do not have, become -1.
    max_length: L_max, at least T.
    batch_size: number of rows B to sample for [T] positions; None samples one
      row, [T].

  Returns:
    [T] or [B, T] int32, increasing along each document.

  Raises:
    ConfigError: max_length is below T.
  """
  positions = jnp.asarray(positions, jnp.int32)
  if batch_size is not None:
    shape = (batch_size, positions.shape[-1])
    positions = jnp.broadcast_to(positions, shape)
  length = positions.shape[-1]
  if max_length < length:
    raise ConfigError(
        f"max_length={max_length}: must be at least {length}, the tokens per"
        " row: each gets a position of its own."
    )

  def one_row(key, positions):
    # The indices of the T largest random numbers are a random sample, found
    # without sorting all max_length numbers.
    _, drawn = jax.lax.top_k(jax.random.bits(key, (max_length,)), length)
    num_used = jnp.max(positions, initial=-1) + 1
    drawn = jnp.where(jnp.arange(length) < num_used, drawn, max_length)
    drawn = jnp.sort(drawn)
    index = jnp.where(positions < 0, length, positions)
    drawn = drawn.at[index].get(mode="fill", fill_value=-1)
    return jnp.where(positions < 0, positions, drawn)

  if positions.ndim == 1:
    return one_row(key, positions)
  keys = jax.random.split(key, len(positions))
  return jax.vmap(one_row)(keys, positions)
