"""The `attention` function: one signature, several implementations."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging

from dape_jax.array_typing import Key, Positions, Query, SegmentIds, Value
from dape_jax.attention import sharded, target
from dape_jax.attention.chunked import chunked_attention
from dape_jax.attention.reference import reference_attention
from dape_jax.encodings.dape_v2 import DapeV2Tile
from dape_jax.encodings.tile import ScoreMod

IMPLEMENTATIONS = ("reference", "chunked", "pallas_tpu")


def attention(
    query: Query,
    key: Key,
    value: Value,
    score_mod: ScoreMod | None = None,
    *,
    q_positions: Positions,
    kv_positions: Positions,
    q_segment_ids: SegmentIds | None = None,
    kv_segment_ids: SegmentIds | None = None,
    q_features: Any = None,
    kv_features: Any = None,
    causal: bool = True,
    window: int | None = None,
    sink: jax.Array | None = None,
    scale: float | None = None,
    implementation: str | None = None,
) -> jax.Array:
  """Returns softmax(score_mod(scale * q k^T)) v, [B, T, N, Hv].

  Scores, bias, score network and softmax are computed in float32 (float64 for
  float64 inputs). The exception is bfloat16 queries on a TPU: the score
  network's matrix products then take bfloat16 operands and accumulate in
  float32. Large biases, such as ALiBi's, are split into two bfloat16 terms.

  A query that sees no key outputs zeros. Queries that see no key, and keys and
  values that no query sees, affect nothing else, even if they contain NaN.

  Args:
    query: [B, T, N, H].
    key: [B, S, K, H], where K divides N; head n uses key/value head n // (N/K).
    value: [B, S, K, Hv].
    score_mod: `encoding.apply({"params": params}, method="score_mod")`.
    q_positions, kv_positions: int32 [T] and [S] (shared by the batch), or
      [B, T] and [B, S]; positions within the document. Keys at negative
      positions are masked.
    q_segment_ids, kv_segment_ids: int32 [B, T] and [B, S]; queries attend only
      to keys with the same id, and id 0 is padding. Pass both or neither.
    q_features, kv_features: trees of [B, T, ...] and [B, S, ...] arrays for the
      score modifier.
    causal: mask keys at positions after the query's.
    window: size in positions; a causal window of w keeps exactly the last w
      keys.
    sink: [N], an extra logit per head in the softmax denominator.
    scale: multiplies the scores; 1 / sqrt(H) by default.
    implementation: None selects the best one that supports the call:
      "pallas_tpu" on a TPU, otherwise "chunked".
      "chunked": XLA, tile by tile; memory linear in the length; any platform.
      "pallas_tpu": Pallas TPU kernels; a tile's heads are all in VMEM.
      "reference": materializes the score matrix; for tests and comparisons.

  Raises:
    NotImplementedError: the implementation does not support this call.
    ValueError: an argument has the wrong shape, dtype or value.
  """
  q_positions, kv_positions = jnp.asarray(q_positions), jnp.asarray(
      kv_positions
  )
  _check(query, key, value, q_positions, kv_positions)
  if window is not None and window < 1:
    raise ValueError(f"window={window}: must be 1 or more, or None.")
  if (q_segment_ids is None) != (kv_segment_ids is None):
    raise ValueError("q_segment_ids and kv_segment_ids: give both or neither.")
  batch, num_queries = query.shape[:2]
  num_keys = key.shape[1]
  if q_segment_ids is not None:
    _check_shape("q_segment_ids", q_segment_ids, (batch, num_queries))
    _check_shape("kv_segment_ids", kv_segment_ids, (batch, num_keys))
  if sink is not None:
    _check_shape("sink", sink, (query.shape[2],))
  arguments = {
      "q_positions": q_positions.astype(jnp.int32),
      "kv_positions": kv_positions.astype(jnp.int32),
      "q_segment_ids": q_segment_ids,
      "kv_segment_ids": kv_segment_ids,
      "q_features": q_features,
      "kv_features": kv_features,
  }
  settings = {
      "causal": causal,
      "window": window,
      "scale": query.shape[-1] ** -0.5 if scale is None else scale,
  }
  if implementation == "reference":
    return reference_attention(
        query, key, value, score_mod, sink=sink, **arguments, **settings
    )
  local = functools.partial(_local_attention, implementation, settings)
  axes = sharded.split_axes(query, key)
  if axes is not None:
    local = functools.partial(sharded.split_attention, local, axes)
  out, lse = local(query, key, value, score_mod, **arguments)
  if sink is None:
    return out
  # The sink takes a fraction exp(sink) / (exp(sink) + exp(lse)) of the weight.
  kept = jax.nn.sigmoid(lse - sink.astype(lse.dtype)[None, None, :])
  return (out * kept[..., None]).astype(out.dtype)


def _local_attention(
    implementation, settings, query, key, value, score_mod, **arguments
):
  """Returns output and log-sum-exp for arrays on one device."""
  chosen = _choose(implementation, query, key, value, score_mod, arguments)
  return chosen(query, key, value, score_mod, **arguments, **settings)


def _choose(implementation, query, key, value, score_mod, arguments):
  """Returns the named implementation, or the best one for the call."""
  if implementation == "chunked":
    return chunked_attention
  if arguments.get("kv_halo"):
    if implementation is None:
      return chunked_attention
    raise NotImplementedError(
        f"implementation={implementation!r} does not support ring attention"
        " with a score modifier that uses neighboring keys; use 'chunked' or"
        " None."
    )
  if implementation not in (None, "pallas_tpu"):
    raise NotImplementedError(
        f"implementation={implementation!r} does not exist; use one of"
        f" {', '.join(map(repr, IMPLEMENTATIONS))}, or None for the best."
    )
  platform = target.target_platform()
  if platform != "tpu":
    if implementation is None:
      return chunked_attention
    raise NotImplementedError(
        f"implementation='pallas_tpu' is for TPUs, not for {platform};"
        " use 'chunked', or None for the best."
    )
  # Importing Pallas TPU is slow, so import it only on a TPU.
  if score_mod is not None and isinstance(score_mod.function, DapeV2Tile):
    from dape_jax.attention.tpu import v2_forward as kernels
  else:
    from dape_jax.attention.tpu import forward as kernels

  features = (arguments["q_features"], arguments["kv_features"])
  reason = kernels.unsupported(query, key, value, score_mod, *features)
  if reason is None:
    return kernels.pallas_attention
  if implementation is not None:
    raise NotImplementedError(f"implementation='pallas_tpu': {reason}.")
  _log_once(f"attention: using 'chunked' instead of 'pallas_tpu': {reason}.")
  return chunked_attention


@functools.cache
def _log_once(message: str) -> None:
  logging.info(message)


def _check(query, key, value, q_positions, kv_positions) -> None:
  for name, array in (("query", query), ("key", key), ("value", value)):
    if array.ndim != 4:
      raise ValueError(
          f"{name} has shape {array.shape}; it must be [batch, length, heads,"
          " head dim]."
      )
  batch, num_queries, num_heads, head_dim = query.shape
  num_keys, num_kv_heads = key.shape[1:3]
  _check_shape("key", key, (batch, num_keys, num_kv_heads, head_dim))
  _check_shape("value", value[..., 0], (batch, num_keys, num_kv_heads))
  if num_kv_heads == 0 or num_heads % num_kv_heads:
    raise ValueError(
        f"key has {num_kv_heads} heads, which do not divide query's"
        f" {num_heads}."
    )
  for name, positions, length in (
      ("q_positions", q_positions, num_queries),
      ("kv_positions", kv_positions, num_keys),
  ):
    if not jnp.issubdtype(positions.dtype, jnp.integer):
      raise ValueError(
          f"{name} has dtype {positions.dtype}; positions must be integers."
      )
    if positions.shape not in ((length,), (batch, length)):
      raise ValueError(
          f"{name} has shape {positions.shape}; it must be ({length},) or"
          f" ({batch}, {length})."
      )


def _check_shape(name: str, array, shape: tuple[int, ...]) -> None:
  if array.shape != shape:
    raise ValueError(f"{name} has shape {array.shape}; it must be {shape}.")
