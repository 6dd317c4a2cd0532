"""Pallas TPU kernels for DAPE V2: the backward kernel.

A single pass as in `backward.py`, with the layout of `v2_window.py`. The
gradient of the convolutions is explicit: a transposed convolution is also one
product of stacked channels. Gradients of the halo's keys are separate output
rows, which are added to those keys outside the kernel.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dape_jax.attention.tpu import common
from dape_jax.attention.tpu import v2_window as windows


def backward(settings, batched, tokens, params):
  """Returns gradients of queries, keys, values and parameters.

  Args:
    settings: settings of the kernel.
    batched: q [B, N, H, T], k [B, K, S, H], v [B, K, S, Hv], the cotangent of
      out [B, N, Hv, T], lse [B, N, T], and delta [B, N, T]: the row sums of out
      times its cotangent, minus the cotangent of lse.
    tokens, params: as in the forward kernel.

  Returns:
    Gradients of q, k and v, and for each parameter [B, *its shape].
  """
  q_BxNxHxT, k_BxKxSxH, v_BxKxSxH, dout_BxNxHxT, lse_BxNxT, delta_BxNxT = (
      batched
  )
  batch, num_heads, head_dim, num_queries = q_BxNxHxT.shape
  num_kv_heads, num_keys, value_dim = v_BxKxSxH.shape[1:]
  block_q, block_kv = settings.block_q, settings.block_kv
  num_blocks = num_queries // block_q, num_keys // block_kv
  scalars, q_index = windows.visible_windows(settings, tokens, along_q=True)
  k_windows = windows.key_windows(settings, k_BxKxSxH)
  weights = windows.network_weights(settings.function, params, q_BxNxHxT.dtype)
  tokens = windows.token_windows(settings, tokens)
  specs = windows.BlockSpecs(
      settings,
      tokens,
      q_index=lambda b, j, i, *refs: q_index(b, j, i, refs),
      kv_index=lambda b, j, i, *refs: j,
  )
  in_place = pl.BlockSpec(memory_space=pl.ANY)
  arguments = (
      *scalars,
      q_BxNxHxT,
      k_windows,
      v_BxKxSxH,
      dout_BxNxHxT,
      lse_BxNxT[:, :, None],
      delta_BxNxT[:, :, None],
      tokens,
      weights,
  )
  sums = _summed(weights)
  dq, dk_windows, dv, dweights = pl.pallas_call(
      functools.partial(_backward_kernel, settings, num_blocks),
      out_shape=(
          jax.ShapeDtypeStruct(q_BxNxHxT.shape, jnp.float32),
          jax.ShapeDtypeStruct(k_windows.shape, jnp.float32),
          jax.ShapeDtypeStruct(v_BxKxSxH.shape, jnp.float32),
          jax.tree.map(
              lambda x: jax.ShapeDtypeStruct(
                  (batch, num_blocks[1], *x.shape), jnp.float32
              ),
              sums,
          ),
      ),
      grid_spec=pltpu.PrefetchScalarGridSpec(
          num_scalar_prefetch=len(scalars),
          grid=(batch, num_blocks[1], num_blocks[0]),
          in_specs=[
              specs.queries(num_heads, head_dim),
              specs.windows(num_kv_heads, head_dim),
              specs.keys(num_kv_heads, value_dim),
              specs.queries(num_heads, value_dim),
              specs.queries(num_heads, 1),
              specs.queries(num_heads, 1),
              specs.tokens,
              jax.tree.map(common.whole_array, weights),
              in_place,
          ],
          out_specs=(
              in_place,
              specs.windows(num_kv_heads, head_dim),
              specs.keys(num_kv_heads, value_dim),
              jax.tree.map(
                  lambda x: pl.BlockSpec(
                      (1, 1, *x.shape),
                      lambda b, j, i, *refs: (b, j) + (0,) * x.ndim,
                  ),
                  sums,
              ),
          ),
          scratch_shapes=[
              pltpu.VMEM((2, num_heads, head_dim, block_q), jnp.float32),
              pltpu.SMEM((2,), jnp.int32),
              pltpu.SemaphoreType.DMA((2,)),
          ],
      ),
      input_output_aliases={len(jax.tree.leaves(arguments)): 0},
      compiler_params=common.compiler_params(
          settings, ("parallel", "arbitrary", "arbitrary")
      ),
      interpret=settings.interpret,
      name="dape_v2_backward",
  )(*arguments, jnp.zeros(q_BxNxHxT.shape, jnp.float32))
  dparams = windows.params_of_weights(
      params, jax.tree.map(lambda x: x.sum(1), dweights)
  )
  dk = windows.sum_windows(settings, dk_windows)
  return (
      (settings.scale * dq).astype(q_BxNxHxT.dtype),
      (settings.scale * dk).astype(k_BxKxSxH.dtype),
      dv.astype(v_BxKxSxH.dtype),
      dparams,
  )


def _summed(weights):
  """Returns the weights whose gradients the kernel accumulates."""
  names = ("hidden", "hidden_bias", "output", "base")
  return {name: weights[name] for name in names}


def _backward_kernel(
    settings,
    num_blocks,
    q_bounds,
    kv_bounds,
    window_bounds,
    first,
    end,
    q_ref,
    k_ref,
    v_ref,
    dout_ref,
    lse_ref,
    delta_ref,
    tokens,
    weights,
    dq_in_ref,
    dq_ref,
    dk_ref,
    dv_ref,
    dweights_ref,
    dq_slots_ref,
    state_ref,
    semaphores,
):
  """Processes one block of keys and one block of queries.

  The scratch belongs to `QuerySums`.
  """
  del first, end, dq_in_ref
  b, j, i = (pl.program_id(axis) for axis in range(3))
  block_q = settings.block_q

  def block_in_memory(index):
    lanes = pl.ds(pl.multiple_of(index * block_q, block_q), block_q)
    return dq_ref.at[b, :, :, lanes]

  dq_sums = common.QuerySums(
      block_in_memory, dq_slots_ref, state_ref, semaphores
  )
  pl.when((j == 0) & (i == 0))(dq_sums.start)

  @pl.when(i == 0)
  def _():
    for ref in jax.tree.leaves((dk_ref, dv_ref, dweights_ref)):
      ref[...] = jnp.zeros_like(ref)

  def tile(is_masked):
    def gradient():
      dq, *sums = _tile_gradients(
          settings,
          windows.Window(settings, tokens, is_masked, q_ref.dtype),
          (q_ref[0], k_ref[0], v_ref[0], dout_ref[0]),
          (lse_ref[0], delta_ref[0]),
          jax.tree.map(lambda ref: ref[...], weights),
      )
      refs = jax.tree.leaves((dk_ref.at[0], dv_ref.at[0], dweights_ref))
      for ref, x in zip(refs, jax.tree.leaves(tuple(sums))):
        if ref.ndim > x.ndim:
          ref = ref.at[0, 0]
        ref[...] += x
      return dq

    dq_sums.add(i, gradient)

  bounds = q_bounds, kv_bounds, window_bounds
  windows.on_visible_window(settings, bounds, num_blocks, (b, i, j), tile)

  last_key_block = j == pl.num_programs(1) - 1
  last_query_block = i == pl.num_programs(2) - 1
  pl.when(last_key_block & last_query_block)(dq_sums.finish_writing)


def _tile_gradients(settings, window, blocks, rows, weights):
  """Returns a tile's contributions to the gradients.

  Args:
    settings: settings of the kernel.
    window: window of keys.
    blocks: q [N, H, t], k [K, rows, H], v [K, s, Hv] and dout [N, Hv, t].
    rows: lse and delta [N, 1, t].
    weights: weights of the score network.

  Returns:
    Gradients of the scaled queries [N, H, t], the window of scaled keys
    [K, rows, H], the values [K, s, Hv] and the weights.
  """
  q, k, v, dout = blocks
  lse, delta = rows
  num_heads, num_kv_heads = len(q), len(k)
  block = settings.block_kv
  if window.visible is not None:
    q, dout = (windows.seen(x, window.visible, axis=2) for x in (q, dout))
    k = windows.seen(k, window.visible, axis=1)
  k, v = (windows.repeat_heads(x, num_heads) for x in (k, v))
  scores = settings.scale * windows.dot(k, q)
  bias, bias_vjp = jax.vjp(window.bias, weights["base"])
  network = window.network(weights, scores, bias)

  probabilities = jnp.exp(network.scores - lse)
  dscores = probabilities * (windows.dot(v, dout) - delta)
  if window.visible is not None:
    visible = window.visible[None, :block]
    probabilities = jnp.where(visible, probabilities, 0)
    dscores = jnp.where(visible, dscores, 0)
  dinputs, dweights = window.network_vjp(weights, network, dscores)

  def of_window(dinput):
    dinput = window.masked(dinput)
    return jnp.concatenate(
        [dinput[:, :block] + dscores, dinput[:, block:]], axis=1
    )

  if bias is None:
    dweights["base"] = {}
  else:
    (dweights["base"],) = bias_vjp(of_window(dinputs[num_heads:]))
  dproducts = of_window(dinputs[:num_heads]).astype(q.dtype)
  dq = windows.dot(k, dproducts, contract=(1, 1))
  dk = windows.dot(dproducts, q, contract=(2, 2))
  dv = windows.dot(probabilities.astype(q.dtype), dout, contract=(2, 2))
  in_groups = lambda x: x.reshape(num_kv_heads, -1, *x.shape[1:]).sum(1)
  if num_heads != num_kv_heads:
    dk, dv = in_groups(dk), in_groups(dv)
  return dq, dk, dv, dweights
