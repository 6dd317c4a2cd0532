"""Self-attention with a position encoding, for use in your own models."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from dape_jax.array_typing import Key, Positions, Query, SegmentIds, Value
from dape_jax.attention.api import attention
from dape_jax.attention.mask import column, row, visible_mask
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
  """Returns self-attention with a position encoding, [B, T, N, Hv].

  Applies the encoding's query scaling, rotation, token features and score
  modifier, where it has them. Absolute encodings act earlier, on the embedded
  tokens (`encoding.embed`).

  Args:
    encoding: a submodule of the calling Linen module, or an encoding bound to
      its parameters (`encoding.bind`).
    x: [B, T, D], the input of the query, key and value projections.
    query, key, value: [B, T, N, H], [B, T, K, H] and [B, T, K, Hv].
    positions: int32 [T] or [B, T], within the document; 0, 1, ... by default.
    segment_ids: int32 [B, T]; tokens attend only within their own id, and id 0
      is padding.
    causal, window, implementation: see `attention`.
  """
  if positions is None:
    positions = jnp.arange(query.shape[1], dtype=jnp.int32)
  num_visible = num_visible_keys(
      q_positions=positions,
      kv_positions=positions,
      q_segment_ids=segment_ids,
      kv_segment_ids=segment_ids,
      causal=causal,
      window=window,
  )
  query, key, q_features, kv_features = encoded_tokens(
      encoding, x, query, key, positions, num_visible, segment_ids
  )
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


def encoded_tokens(
    encoding: PositionalEncoding,
    x: jax.Array,
    query: Query,
    key: Key,
    positions: Positions,
    num_visible: jax.Array,
    segment_ids: SegmentIds | None = None,
    previous: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, Any, jax.Array | None]:
  """Returns scaled and rotated query, rotated key, and features of both.

  Applies the part of an encoding that precedes the scores. The returned keys
  and their features can be cached.

  Args:
    encoding, x, query, key, positions, segment_ids: see `attend`.
    num_visible: result of `num_visible_keys`.
    previous: see `PositionalEncoding.features`.
  """
  # Features are computed from queries and keys before rotation and scaling.
  features = encoding.features(
      x, query, key, segment_ids=segment_ids, previous=previous
  )
  query = encoding.scale_query(query, num_visible)
  query, key = encoding.rotate(query, key, positions, positions)
  return query, key, *features


@functools.partial(jax.jit, static_argnames=("causal", "window"))
def num_visible_keys(
    *,
    q_positions: Positions,
    kv_positions: Positions,
    q_segment_ids: SegmentIds | None,
    kv_segment_ids: SegmentIds | None,
    causal: bool,
    window: int | None,
) -> jax.Array:
  """Returns the number of keys that each query sees, int32 [T] or [B, T].

  Counts pair by pair, for arbitrary positions. XLA fuses comparison and sum, so
  the pairs are not materialized. Returns [T] if no argument has a batch axis.

  Args: see `attention`.
  """

  def count(q_positions, kv_positions, q_ids, kv_ids):
    visible = visible_mask(
        column(q_positions),
        row(kv_positions),
        column(q_ids),
        row(kv_ids),
        causal=causal,
        window=window,
    )
    return visible.sum(-1, dtype=jnp.int32)

  arrays = q_positions, kv_positions, q_segment_ids, kv_segment_ids
  axes = [None if x is None or x.ndim == 1 else 0 for x in arrays]
  if any(axis is not None for axis in axes):
    count = jax.vmap(count, axes)
  return count(*arrays)
