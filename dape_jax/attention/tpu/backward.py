"""Pallas TPU kernels for attention with a score modifier: the backward kernel.

A single pass: for each block of keys, the kernel iterates over the blocks of
queries that see it, recomputes each tile's scores and takes `jax.vjp` of the
tile function. Gradients of keys and values accumulate in VMEM. Gradients of the
encoding's parameters go to one output block per block of keys, and are summed
outside the kernel. Every block of keys adds to the gradients of queries, so
these stay in HBM and explicit copies bring them to VMEM.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dape_jax.attention.tpu import common
from dape_jax.attention.tpu.common import LANES, Tokens


def backward(settings, batched, tokens, params):
  """Returns gradients of queries, keys, values and parameters.

  Args:
    settings: settings of the kernel.
    batched: q [B, N, T, H], k [B, K, S, H], v [B, K, S, Hv], the cotangent of
      out [B, N, T, Hv], lse [B, N, T], and delta [B, N, T]: the row sums of out
      times its cotangent, minus the cotangent of lse.
    tokens, params: as in the forward kernel.

  Returns:
    Gradients of q, k and v, and for each parameter [B, *its shape].
  """
  q_BxNxTxH, k_BxKxSxH, v_BxKxSxH, dout_BxNxTxH, lse_BxNxT, delta_BxNxT = (
      batched
  )
  # Blocks of twice the keys save little here, and double the compile time.
  settings = dataclasses.replace(settings, block_kv=LANES)
  batch, num_heads, num_queries, head_dim = q_BxNxTxH.shape
  num_kv_heads, num_keys, value_dim = v_BxKxSxH.shape[1:]
  block_q, block_kv = settings.block_q, settings.block_kv
  num_blocks = num_queries // block_q, num_keys // block_kv
  scalars, q_index = common.visible_blocks(settings, tokens, along_q=True)
  row = 0 if len(tokens.q_positions) == 1 else None

  def at_q(b, j, i, *refs):
    return b, 0, q_index(b, j, i, refs), 0

  def at_kv(b, j, i, *refs):
    return b, 0, j, 0

  def at_q_row(b, j, i, *refs):
    return b, 0, q_index(b, j, i, refs)

  def q_row(b, j, i, *refs):
    return b if row is None else row, 0, q_index(b, j, i, refs)

  def kv_row(b, j, i, *refs):
    return b if row is None else row, 0, j

  def partial_sum(x):
    return pl.BlockSpec(
        (1, 1, *x.shape), lambda b, j, i, *refs: (b, j) + (0,) * x.ndim
    )

  q_tokens = pl.BlockSpec((1, 1, block_q), q_row)
  kv_tokens = pl.BlockSpec((1, 1, block_kv), kv_row)
  has_ids = tokens.q_ids is not None
  key_block = pl.BlockSpec((1, num_kv_heads, block_kv, head_dim), at_kv)
  value_block = pl.BlockSpec((1, num_kv_heads, block_kv, value_dim), at_kv)
  row_block = pl.BlockSpec((1, num_heads, block_q), at_q_row)
  in_place = pl.BlockSpec(memory_space=pl.ANY)
  dq_BxNxTxH = jnp.zeros(q_BxNxTxH.shape, jnp.float32)
  arguments = (
      *scalars,
      q_BxNxTxH,
      k_BxKxSxH,
      v_BxKxSxH,
      dout_BxNxTxH,
      lse_BxNxT,
      delta_BxNxT,
      tokens,
      params,
  )
  dq, dk, dv, dparams = pl.pallas_call(
      functools.partial(_backward_kernel, settings, num_blocks),
      out_shape=(
          jax.ShapeDtypeStruct(dq_BxNxTxH.shape, jnp.float32),
          jax.ShapeDtypeStruct(k_BxKxSxH.shape, k_BxKxSxH.dtype),
          jax.ShapeDtypeStruct(v_BxKxSxH.shape, v_BxKxSxH.dtype),
          jax.tree.map(
              lambda x: jax.ShapeDtypeStruct(
                  (batch, num_blocks[1], *x.shape), jnp.float32
              ),
              params,
          ),
      ),
      grid_spec=pltpu.PrefetchScalarGridSpec(
          num_scalar_prefetch=len(scalars),
          grid=(batch, num_blocks[1], num_blocks[0]),
          in_specs=[
              pl.BlockSpec((1, num_heads, block_q, head_dim), at_q),
              key_block,
              value_block,
              pl.BlockSpec((1, num_heads, block_q, value_dim), at_q),
              row_block,
              row_block,
              Tokens(
                  q_tokens,
                  kv_tokens,
                  q_tokens if has_ids else None,
                  kv_tokens if has_ids else None,
              ),
              jax.tree.map(common.whole_array, params),
              in_place,
          ],
          out_specs=(
              in_place,
              key_block,
              value_block,
              jax.tree.map(partial_sum, params),
          ),
          scratch_shapes=[
              pltpu.VMEM((2, num_heads, block_q, head_dim), jnp.float32),
              pltpu.VMEM((num_kv_heads, block_kv, head_dim), jnp.float32),
              pltpu.VMEM((num_kv_heads, block_kv, value_dim), jnp.float32),
              pltpu.SMEM((2,), jnp.int32),
              pltpu.SemaphoreType.DMA((2,)),
          ],
      ),
      input_output_aliases={len(jax.tree.leaves(arguments)): 0},
      compiler_params=common.compiler_params(
          settings, ("parallel", "arbitrary", "arbitrary")
      ),
      interpret=settings.interpret,
      name="dape_backward",
  )(*arguments, dq_BxNxTxH)
  dparams = jax.tree.map(lambda x: x.sum(1), dparams)
  return (settings.scale * dq).astype(q_BxNxTxH.dtype), dk, dv, dparams


def _backward_kernel(
    settings,
    num_blocks,
    q_bounds,
    kv_bounds,
    first,
    end,
    q_ref,
    k_ref,
    v_ref,
    dout_ref,
    lse_ref,
    delta_ref,
    tokens,
    params_ref,
    dq_in_ref,
    dq_ref,
    dk_ref,
    dv_ref,
    dparams_ref,
    dq_slots_ref,
    dk_sum_ref,
    dv_sum_ref,
    state_ref,
    semaphores,
):
  """Processes one block of keys and one block of queries.

  Scratch holds the state of `QuerySums` and the gradients of keys and values.
  """
  del first, end, dq_in_ref
  b, j, i = (pl.program_id(axis) for axis in range(3))
  precision = common.matmul_precision(q_ref.dtype)
  block_q = settings.block_q

  def block_in_memory(index):
    rows = pl.ds(pl.multiple_of(index * block_q, block_q), block_q)
    return dq_ref.at[b, :, rows, :]

  dq_sums = common.QuerySums(
      block_in_memory, dq_slots_ref, state_ref, semaphores
  )
  pl.when((j == 0) & (i == 0))(dq_sums.start)

  @pl.when(i == 0)
  def _():
    sums = dk_sum_ref, dv_sum_ref, dparams_ref
    for ref in jax.tree.leaves(sums):
      ref[...] = jnp.zeros_like(ref)

  def tile(is_masked):
    def gradient():
      # Blocks are loaded here and not before the copy starts: the compiler
      # would keep them in registers across it.
      return _tile_gradients(
          settings,
          is_masked,
          precision,
          (q_ref[0], k_ref[0], v_ref[0], dout_ref[0]),
          (lse_ref, delta_ref),
          tokens,
          params_ref,
          (dk_sum_ref, dv_sum_ref, dparams_ref),
      )

    dq_sums.add(i, gradient)

  bounds = q_bounds, kv_bounds
  common.on_visible_tile(settings, bounds, num_blocks, (b, i, j), tile)

  @pl.when(i == pl.num_programs(2) - 1)
  def _():
    dk_ref[0] = (settings.scale * dk_sum_ref[...]).astype(dk_ref.dtype)
    dv_ref[0] = dv_sum_ref[...].astype(dv_ref.dtype)
    pl.when(j == pl.num_programs(1) - 1)(dq_sums.finish_writing)


def _tile_gradients(
    settings, is_masked, precision, blocks, rows, tokens, params_ref, sums
):
  """Adds a tile to `sums` and returns the gradient of scaled q, [N, q, H]."""
  q, k, v, dout = blocks
  dk_sum_ref, dv_sum_ref, dparams_ref = sums
  q_columns = [common.column(tokens.q_positions[0])]
  if tokens.q_ids is not None:
    q_columns.append(common.column(tokens.q_ids[0]))
  visibles = common.visible_strips(settings, q_columns, tokens, is_masked)
  if is_masked:
    q, dout, k, v = common.seen_rows(visibles, (q, dout), (k, v))
  scores = settings.scale * common.query_key(q, k, precision)
  dweights = common.query_key(dout, v, precision)
  lse, delta = (
      jnp.stack([common.column(ref[0, n : n + 1]) for n in range(len(q))])
      for ref in rows
  )
  params = jax.tree.map(lambda ref: ref[...], params_ref)
  dq = 0.0
  for c, visible in enumerate(visibles):
    strip = slice(c * LANES, (c + 1) * LANES)
    tile = common.strip_tile(q_columns, tokens, c, visible, q.dtype)
    modified, vjp = jax.vjp(
        functools.partial(common.modified_scores, settings, tile),
        params,
        scores[:, :, strip],
    )
    weights = jnp.exp(modified - lse)
    dmodified = weights * (dweights[:, :, strip] - delta)
    if is_masked:
      weights = jnp.where(visible[None], weights, 0)
      dmodified = jnp.where(visible[None], dmodified, 0)
    dparams, dscores = vjp(dmodified)
    for ref, x in zip(jax.tree.leaves(dparams_ref), jax.tree.leaves(dparams)):
      ref[0, 0] += x
    dv_sum_ref[:, strip, :] += _transposed_product(weights, dout, v, precision)
    dk_sum_ref[:, strip, :] += _transposed_product(dscores, q, k, precision)
    dq += common.weighted_values(dscores, k[:, strip], precision)
  return dq


def _transposed_product(x_NxqxS, y_NxqxH, like_KxSxH, precision):
  """Returns x^T y summed over the query heads of a key head, [K, S, H]."""
  num_kv_heads = len(like_KxSxH)
  return jax.lax.dot_general(
      x_NxqxS.reshape(num_kv_heads, -1, x_NxqxS.shape[-1]).astype(
          y_NxqxH.dtype
      ),
      y_NxqxH.reshape(num_kv_heads, -1, y_NxqxH.shape[-1]),
      (((1,), (1,)), ((0,), (0,))),
      precision=precision,
      preferred_element_type=jnp.float32,
  )
