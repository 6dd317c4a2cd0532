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
  """Returns positions drawn from 0..max_length - 1, in the order of the text.

  Each row draws as many of them as its longest document has tokens, without
  replacement, all sets equally likely, and sorts them; the token at position p of
  its document gets number p, whatever padding follows. So a model
  trained on short text meets the positions of long text (section 3). For
  training; read with the positions as they are.

  Args:
    key: of `jax.random`.
    positions: [T] or [B, T] int32, within documents, so below T. Negative ones
      (no token) stay; one of T or more, which no row of whole documents has,
      becomes -1.
    max_length: L_max, at least T.
    batch_size: rows B that [T] positions are drawn for; None is one draw, [T].

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
        f"max_length={max_length}: must be at least the {length} tokens of a"
        " row, each gets a position of its own."
    )

  def one_row(key, positions):
    # Where the T largest random numbers are, from the largest on: a sample in
    # random order, without a sort of all max_length.
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
