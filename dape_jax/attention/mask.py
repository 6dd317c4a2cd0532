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
  """Returns which keys each query of one batch element sees, bool [T, S].

  A key is seen when it exists (position 0 or more), stands in the query's
  document (equal segment ids, 0 being padding, which sees and is seen by
  nothing), not after the query if `causal`, and less than `window` positions
  away, so that a causal window of w keeps exactly w keys.

  Args:
    q_positions, kv_positions: int32 [T] and [S].
    q_segment_ids, kv_segment_ids: int32 [T] and [S], or None.
    causal: hide keys after the query.
    window: in positions, or None.
  """
  q = q_positions[:, None]
  kv = kv_positions[None, :]
  visible = jnp.broadcast_to(kv >= 0, (q.shape[0], kv.shape[1]))
  if causal:
    visible = visible & (kv <= q)
  if window is not None:
    visible = visible & (jnp.abs(q - kv) < window)
  if q_segment_ids is not None:
    q_ids = q_segment_ids[:, None]
    visible = visible & (q_ids == kv_segment_ids[None, :]) & (q_ids != 0)
  return visible


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
