"""Pallas TPU kernels for attention with a score modifier: the forward kernel.

A program computes the scores of all heads for a block of queries and a block of
keys in VMEM, applies the encoding's tile function to strips of 128 keys, and
updates the online softmax. `backward.py` has the backward kernel, `common.py`
the code that both share.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dape_jax.attention import sharded
from dape_jax.attention.mask import MASKED
from dape_jax.attention.tpu import common
from dape_jax.attention.tpu.backward import backward
from dape_jax.attention.tpu.common import LANES, Settings, Tokens
from dape_jax.encodings.tile import ScoreMod

_MIN_QUERIES = 16


def unsupported(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    score_mod: ScoreMod | None,
    q_features: Any,
    kv_features: Any,
) -> str | None:
  """Returns a line on why the kernels do not support a call, or None."""
  if q_features is not None or kv_features is not None:
    return "the kernels do not support token features"
  if score_mod is not None:
    name = type(score_mod.function).__name__
    if score_mod.scope == "row":
      return f"{name} needs whole rows of scores, but the kernels use tiles"
    if not score_mod.function.in_kernel:
      return f"{name} cannot be traced inside a kernel"
    if score_mod.halo:
      return f"{name} uses neighboring keys, which the kernels do not load"
  for name, array in (("query", query), ("key", key), ("value", value)):
    if array.dtype not in (jnp.float32, jnp.bfloat16):
      return f"{name} is {array.dtype}; the kernels need float32 or bfloat16"
    if array.dtype != query.dtype:
      return f"query is {query.dtype} but {name} {array.dtype}"
  batch, num_queries = query.shape[:2]
  if num_queries < _MIN_QUERIES:
    return f"{num_queries} queries are fewer than {_MIN_QUERIES}"
  if sharded.is_left_to_compiler():
    return f"a batch of {batch} is not divisible by the number of devices"
  return None


def pallas_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    score_mod: ScoreMod | None,
    *,
    q_positions: jax.Array,
    kv_positions: jax.Array,
    q_segment_ids: jax.Array | None,
    kv_segment_ids: jax.Array | None,
    q_features: Any,
    kv_features: Any,
    causal: bool,
    window: int | None,
    scale: float,
    interpret: bool | pltpu.InterpretParams = False,
) -> tuple[jax.Array, jax.Array]:
  """Returns attention for `api.attention`'s arguments and its log-sum-exp.

  Scores, bias and softmax are float32. For bfloat16 inputs all matrix products,
  including the score network's, take bfloat16 operands and accumulate in
  float32. Temporary memory is linear in the length.

  Args:
    interpret: True interprets the kernels, on any machine;
      `pltpu.InterpretParams` simulates a TPU and detects races, on one device.

  Returns:
    Output [B, T, N, Hv] in query's dtype and log-sum-exp [B, T, N] in float32;
    0 and -1e30 for queries that see no key. Both are differentiable.

  Raises:
    NotImplementedError: see `unsupported`.
  """
  reason = unsupported(query, key, value, score_mod, q_features, kv_features)
  if reason is not None:
    raise NotImplementedError(f"implementation='pallas_tpu': {reason}.")
  num_queries, num_heads = query.shape[1:3]
  settings = Settings(
      None if score_mod is None else score_mod.function,
      causal,
      window,
      scale,
      interpret,
      LANES,
      _block_of_keys(num_heads, key.shape[1]),
  )

  def heads_first(x_BxTxNxH, block):
    padded = common.pad_tokens(x_BxTxNxH, 1, block, 0)
    return padded.swapaxes(1, 2)

  def rows(x, block, absent):
    # Positions shared by the batch stay one row, unless other tokens differ.
    if x is None:
      return None
    x = jnp.atleast_2d(x).astype(jnp.int32)
    return common.pad_tokens(x, 1, block, absent)[:, None]

  block_q, block_kv = settings.block_q, settings.block_kv
  tokens = Tokens(
      rows(q_positions, block_q, -1),
      rows(kv_positions, block_kv, -1),
      rows(q_segment_ids, block_q, 0),
      rows(kv_segment_ids, block_kv, 0),
  )
  tokens = common.broadcast_first(tokens)
  params = {} if score_mod is None else score_mod.params
  out_BxNxTxH, lse_BxNxT = _attention(
      settings,
      heads_first(query, block_q),
      heads_first(key, block_kv),
      heads_first(value, block_kv),
      jax.tree.map(common.in_lanes, params),
      tokens,
  )
  return (
      out_BxNxTxH[:, :, :num_queries].swapaxes(1, 2),
      lse_BxNxT[:, :, :num_queries].swapaxes(1, 2),
  )


def _block_of_keys(num_heads: int, num_keys: int) -> int:
  """Returns the number of keys per tile.

  Wide tiles take fewer steps, but causality masks much of them in short
  sequences, and the scores of many heads do not fit in VMEM.
  """
  return 2 * LANES if num_keys >= 1024 and num_heads <= 16 else LANES


def _forward(settings, batched, tokens, params):
  """Runs the forward kernel; returns out [B, N, T, Hv] and lse [B, N, T]."""
  q_BxNxTxH, k_BxKxSxH, v_BxKxSxH = batched
  batch, num_heads, num_queries, head_dim = q_BxNxTxH.shape
  num_kv_heads, num_keys, value_dim = v_BxKxSxH.shape[1:]
  block_q, block_kv = settings.block_q, settings.block_kv
  grid = batch, num_queries // block_q, num_keys // block_kv
  scalars, kv_index = common.visible_blocks(settings, tokens, along_q=False)
  row = 0 if len(tokens.q_positions) == 1 else None

  def at_q(b, i, j, *refs):
    return b, 0, i, 0

  def at_kv(b, i, j, *refs):
    return b, 0, kv_index(b, i, j, refs), 0

  def q_row(b, i, j, *refs):
    return b if row is None else row, 0, i

  def kv_row(b, i, j, *refs):
    return b if row is None else row, 0, kv_index(b, i, j, refs)

  q_tokens = pl.BlockSpec((1, 1, block_q), q_row)
  kv_tokens = pl.BlockSpec((1, 1, block_kv), kv_row)
  has_ids = tokens.q_ids is not None
  columns = 2 if has_ids else 1
  return pl.pallas_call(
      functools.partial(_forward_kernel, settings, grid[1:]),
      out_shape=(
          jax.ShapeDtypeStruct(
              (batch, num_heads, num_queries, value_dim), q_BxNxTxH.dtype
          ),
          jax.ShapeDtypeStruct((batch, num_heads, num_queries), jnp.float32),
      ),
      grid_spec=pltpu.PrefetchScalarGridSpec(
          num_scalar_prefetch=len(scalars),
          grid=grid,
          in_specs=[
              pl.BlockSpec((1, num_heads, block_q, head_dim), at_q),
              pl.BlockSpec((1, num_kv_heads, block_kv, head_dim), at_kv),
              pl.BlockSpec((1, num_kv_heads, block_kv, value_dim), at_kv),
              Tokens(
                  q_tokens,
                  kv_tokens,
                  q_tokens if has_ids else None,
                  kv_tokens if has_ids else None,
              ),
              jax.tree.map(common.whole_array, params),
          ],
          out_specs=(
              pl.BlockSpec((1, num_heads, block_q, value_dim), at_q),
              pl.BlockSpec(
                  (1, num_heads, block_q), lambda b, i, j, *refs: (b, 0, i)
              ),
          ),
          scratch_shapes=[
              pltpu.VMEM((num_heads, block_q, LANES), jnp.float32),
              pltpu.VMEM((num_heads, block_q, LANES), jnp.float32),
              pltpu.VMEM((num_heads, block_q, value_dim), jnp.float32),
              pltpu.VMEM((columns, block_q, LANES), jnp.int32),
          ],
      ),
      compiler_params=common.compiler_params(
          settings, ("parallel", "parallel", "arbitrary")
      ),
      interpret=settings.interpret,
      name="dape_forward",
  )(*scalars, q_BxNxTxH, k_BxKxSxH, v_BxKxSxH, tokens, params)


def _forward_kernel(
    settings,
    num_blocks,
    q_bounds,
    kv_bounds,
    first,
    end,
    q_ref,
    k_ref,
    v_ref,
    tokens,
    params,
    out_ref,
    lse_ref,
    peak_ref,
    total_ref,
    sum_ref,
    columns_ref,
):
  """Processes one block of queries and one block of keys.

  Scratch holds each query's running maximum, total weight and weighted sum of
  values, and the positions and ids of the queries as columns.
  """
  del first, end
  b, i, j = (pl.program_id(axis) for axis in range(3))
  precision = common.matmul_precision(q_ref.dtype)
  value_dim = v_ref.shape[-1]

  @pl.when(j == 0)
  def _():
    peak_ref[...] = jnp.full_like(peak_ref, MASKED)
    total_ref[...] = jnp.zeros_like(total_ref)
    sum_ref[...] = jnp.zeros_like(sum_ref)
    columns_ref[0] = common.column(tokens.q_positions[0])
    if tokens.q_ids is not None:
      columns_ref[1] = common.column(tokens.q_ids[0])

  def tile(is_masked):
    q_columns = columns_ref[...]
    q, k, v = q_ref[0], k_ref[0], v_ref[0]
    visibles = common.visible_strips(settings, q_columns, tokens, is_masked)
    if is_masked:
      q, k, v = common.seen_rows(visibles, (q,), (k, v))
    scores = settings.scale * common.query_key(q, k, precision)
    strips = []
    for c, visible in enumerate(visibles):
      strip = scores[:, :, c * LANES : (c + 1) * LANES]
      strip = common.modified_scores(
          settings,
          common.strip_tile(q_columns, tokens, c, visible, q.dtype),
          jax.tree.map(lambda ref: ref[...], params),
          strip,
      )
      if is_masked:
        strip = jnp.where(visible[None], strip, MASKED)
      strips.append(strip)

    old_peak = peak_ref[...]
    peak = jnp.maximum(
        old_peak,
        functools.reduce(jnp.maximum, strips).max(axis=2, keepdims=True),
    )
    # Before a query's first visible key, masked keys have weight
    # exp(MASKED - MASKED) = 1. The decay at that key removes them.
    decay = jnp.exp(old_peak - peak)
    weights = [jnp.exp(strip - peak) for strip in strips]
    total_ref[...] = decay * total_ref[...] + functools.reduce(
        jnp.add, weights
    ).sum(axis=2, keepdims=True)
    weighted = sum_ref[...] * common.in_width(decay, value_dim)
    for c, weight in enumerate(weights):
      weighted += common.weighted_values(
          weight, v[:, c * LANES : (c + 1) * LANES], precision
      )
    sum_ref[...] = weighted
    peak_ref[...] = peak

  bounds = q_bounds, kv_bounds
  common.on_visible_tile(settings, bounds, num_blocks, (b, i, j), tile)

  @pl.when(j == pl.num_programs(2) - 1)
  def _():
    peak, total = peak_ref[...], total_ref[...]
    seen = peak > 0.5 * MASKED
    total = jnp.where(seen, total, 1)
    scale = jnp.where(seen, 1 / total, 0)
    out = sum_ref[...] * common.in_width(scale, value_dim)
    out_ref[0] = out.astype(out_ref.dtype)
    lse = jnp.where(seen, peak + jnp.log(total), MASKED)
    for n in range(len(lse)):
      lse_ref[0, n : n + 1, :] = lse[n].T[:1]


_attention = common.differentiable(_forward, backward, channel_axis=-1)
