"""Self-attention with all that an encoding does, for models of your own."""

import jax
import jax.numpy as jnp

from dape_jax.array_typing import Key, Positions, Query, SegmentIds, Value
from dape_jax.attention.api import attention
from dape_jax.encodings.base import PositionalEncoding


def attend(
    encoding: PositionalEncoding,
    x: jax.Array,
    query: Query,
    key: Key,
    value: Value,
    *,
    positions: Positions | None = None,
    segment_ids: SegmentIds | None = None,
    causal: bool = True,
    window: int | None = None,
    implementation: str | None = None,
) -> jax.Array:
  """Returns self-attention with an encoding, [B, T, N, Hv].

  The encoding scales and rotates queries and keys, makes its features of tokens,
  and modifies the scores, each if it does so. Absolute encodings act before, on
  the embedded tokens (`encoding.embed`).

  Args:
    encoding: a submodule of the calling Linen module, or bound to its parameters
      (`encoding.bind`).
    x: [B, T, D], what query, key and value are projections of.
    query, key, value: [B, T, N, H], [B, T, K, H] and [B, T, K, Hv].
    positions: int32 [T] or [B, T], within the document; by default 0, 1, ...
    segment_ids: int32 [B, T]; tokens see their own id only, and 0 is padding.
    causal, window, implementation: see `attention`.
  """
  if positions is None:
    positions = jnp.arange(query.shape[1], dtype=jnp.int32)
  q_features, kv_features = encoding.features(
      x, query, key, segment_ids=segment_ids
  )
  query = encoding.scale_query(
      query,
      num_visible_keys(
          positions, segment_ids=segment_ids, causal=causal, window=window
      ),
  )
  query, key = encoding.rotate(query, key, positions, positions)
  return attention(
      query,
      key,
      value,
      encoding.score_mod(),
      q_positions=positions,
      kv_positions=positions,
      q_segment_ids=segment_ids,
      kv_segment_ids=segment_ids,
      q_features=q_features,
      kv_features=kv_features,
      causal=causal,
      window=window,
      sink=encoding.sink(),
      implementation=implementation,
  )


def num_visible_keys(
    positions: Positions,
    *,
    segment_ids: SegmentIds | None,
    causal: bool,
    window: int | None,
) -> jax.Array:
  """Returns how many keys each query sees, int32 [T] or [B, T].

  For documents whose positions are 0, 1, 2, ... without gaps. Without causality
  a query sees its whole document, less what is outside the window. Padding sees
  none.

  Args:
    positions, segment_ids, causal, window: see `attend`.
  """
  seen = _num_visible(positions, segment_ids, causal, window)
  if segment_ids is None:
    return seen
  return jnp.where(segment_ids == 0, 0, seen)


def _num_visible(positions, segment_ids, causal, window):
  """Returns as `num_visible_keys`, anything for padding."""
  if segment_ids is not None:
    positions = jnp.broadcast_to(positions, segment_ids.shape)
  before = positions + 1
  if causal:
    return before if window is None else jnp.minimum(before, window)
  if segment_ids is None:
    length = jnp.full(positions.shape, positions.shape[-1], jnp.int32)
  else:

    def tokens_of_id(ids):
      ordered = jnp.sort(ids)
      end = jnp.searchsorted(ordered, ids, side="right")
      return end - jnp.searchsorted(ordered, ids, side="left")

    length = jax.vmap(tokens_of_id)(segment_ids)
  if window is None:
    return length
  before = jnp.broadcast_to(before, length.shape)
  after = length - before
  return jnp.minimum(before, window) + jnp.minimum(after, window - 1)
