"""Which keys a query sees."""

from typing import Any

import jax
import jax.numpy as jnp

# The score of what is not seen, and the log-sum-exp of a query that sees nothing.
# Finite, so that there is no inf - inf.
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
  """Returns which keys each query of one batch element sees, bool.

  A key is seen when it exists (position 0 or more), stands in the query's
  document (equal segment ids, 0 being padding, which sees and is seen by
  nothing), not after the query if `causal`, and less than `window` positions
  away, so that a causal window of w keeps exactly w keys.

  Args:
    q_positions, kv_positions: int32 that broadcast against each other to the
      result's shape: [T, 1] and [1, S], or in a kernel [1, T] and [S, 1].
    q_segment_ids, kv_segment_ids: alike, or None.
    causal: hide keys after the query.
    window: in positions, or None.
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
  """Returns [length, 1] of [length]; None stays None."""
  return None if x is None else x[:, None]


def row(x: jax.Array | None) -> jax.Array | None:
  """Returns [1, length] of [length]; None stays None."""
  return None if x is None else x[None, :]


def where_tokens(kept: jax.Array, tree: Any, axis: int) -> Any:
  """Returns arrays with zeros for all tokens but the kept ones.

  Args:
    kept: [length] bool.
    tree: arrays with the tokens on `axis`.
    axis: 0 or more.
  """

  def where(x):
    shape = [1] * x.ndim
    shape[axis] = len(kept)
    return jnp.where(kept.reshape(shape), x, 0)

  return jax.tree.map(where, tree)
