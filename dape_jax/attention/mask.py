"""Visibility of keys to queries."""

from typing import Any

import jax
import jax.numpy as jnp

# The score of an invisible key, and the log-sum-exp of a query that sees no
# key. Finite, to avoid inf - inf.
MASKED = -1e30


def visible_mask(
    q_positions: jax.Array,
    kv_positions: jax.Array,
    q_segment_ids: jax.Array | None,
    kv_segment_ids: jax.Array | None,
    *,
    causal: bool,
    window: int | None,
) -> jax.Array:
  """Returns which keys are visible to each query of one batch element, bool.

  A key is visible if its position is not negative, its segment id equals the
  query's and is not 0 (padding), it is not after the query if `causal`, and it
  is less than `window` positions away. A causal window of w thus keeps exactly
  w keys.

  Args:
    q_positions, kv_positions: int32 arrays that broadcast to the result's
      shape: [T, 1] and [1, S], or in a kernel [1, T] and [S, 1].
    q_segment_ids, kv_segment_ids: arrays of the same shapes, or None.
    causal: mask keys after the query.
    window: size in positions, or None.
  """
  q, kv = q_positions, kv_positions
  visible = jnp.broadcast_to(kv >= 0, jnp.broadcast_shapes(q.shape, kv.shape))
  if causal:
    visible = visible & (kv <= q)
  if window is not None:
    visible = visible & (jnp.abs(q - kv) < window)
  if q_segment_ids is not None:
    visible = visible & (q_segment_ids == kv_segment_ids) & (q_segment_ids != 0)
  return visible


def column(x: jax.Array | None) -> jax.Array | None:
  """Returns `x` [length] as [length, 1], or None for None."""
  return None if x is None else x[:, None]


def row(x: jax.Array | None) -> jax.Array | None:
  """Returns `x` [length] as [1, length], or None for None."""
  return None if x is None else x[None, :]


def where_tokens(kept: jax.Array, tree: Any, axis: int) -> Any:
  """Returns the arrays with zeros at all tokens that are not kept.

  Args:
    kept: [length] bool.
    tree: arrays with tokens on `axis`.
    axis: nonnegative.
  """

  def where(x):
    shape = [1] * x.ndim
    shape[axis] = len(kept)
    return jnp.where(kept.reshape(shape), x, 0)

  return jax.tree.map(where, tree)
