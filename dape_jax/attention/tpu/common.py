"""Shared code of the TPU attention kernels: tiles, masks, batching, copies."""

import dataclasses
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dape_jax.attention import tiling
from dape_jax.attention.mask import visible_mask
from dape_jax.encodings.tile import Tile, TileFunction

LANES = 128


@dataclasses.dataclass(frozen=True)
class Settings:
  """Static settings of the kernels."""

  function: TileFunction | None
  causal: bool
  window: int | None
  scale: float
  interpret: Any
  block_q: int
  block_kv: int


@flax.struct.dataclass
class Tokens:
  """Positions and ids (or None), [P, 1, T] and [P, 1, S]; P is B or 1."""

  q_positions: jax.Array
  kv_positions: jax.Array
  q_ids: jax.Array | None
  kv_ids: jax.Array | None


def pad_tokens(x: jax.Array, axis: int, block: int, value) -> jax.Array:
  widths = [(0, 0)] * x.ndim
  widths[axis] = (0, -x.shape[axis] % block)
  return jnp.pad(x, widths, constant_values=value)


def broadcast_first(tree):
  """Returns the arrays broadcast to equal first axes."""
  size = max(len(x) for x in jax.tree.leaves(tree))
  return jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape[1:])), tree)


def in_lanes(x: jax.Array) -> jax.Array:
  """Returns a parameter as kernels take it: per-head numbers in every lane."""
  x = x.astype(jnp.float32)
  if x.ndim > 1:
    return x
  return jnp.broadcast_to(jnp.atleast_1d(x)[:, None], (x.size, LANES))


def over_batch(function, batched, tokens, params):
  """Returns function(batched, tokens, params), with a batching rule.

  All results have a leading batch axis. `jax.vmap` folds the mapped axis into
  the batch, or loops over it if it maps parameters.
  """
  call = jax.custom_batching.custom_vmap(function)

  @call.def_vmap
  def mapped(size, is_mapped, batched, tokens, params):
    arguments = batched, tokens, params
    leaves, structure = jax.tree.flatten(arguments)
    mask = jax.tree.leaves(is_mapped)
    if any(jax.tree.leaves(is_mapped[2])):
      scanned = [x for x, m in zip(leaves, mask) if m]

      def one(elements):
        rest = iter(elements)
        return call(
            *structure.unflatten(
                [next(rest) if m else x for x, m in zip(leaves, mask)]
            )
        )

      out = jax.lax.map(one, scanned)
      return out, jax.tree.map(lambda _: True, out)

    batch = batched[0].shape[1 if jax.tree.leaves(is_mapped[0])[0] else 0]

    def fold(x, m):
      x = x if m else x[None]
      x = jnp.broadcast_to(x, (size, batch, *x.shape[2:]))
      return x.reshape(size * batch, *x.shape[2:])

    shared = len(tokens.q_positions) < batch
    if any(jax.tree.leaves(is_mapped[1])) or not shared:
      tokens = jax.tree.map(fold, tokens, is_mapped[1])
    out = call(jax.tree.map(fold, batched, is_mapped[0]), tokens, params)
    out = jax.tree.map(lambda x: x.reshape(size, batch, *x.shape[1:]), out)
    return out, jax.tree.map(lambda _: True, out)

  return call(batched, tokens, params)


def differentiable(forward, backward, channel_axis: int):
  """Returns a differentiable attention(settings, q, k, v, params, tokens).

  Lengths are multiples of the block sizes. The residuals are the inputs, the
  output and the log-sum-exp.

  Args:
    forward: maps (settings, (q, k, v), tokens, params) to out and lse
      [B, N, T].
    backward: maps (settings, (q, k, v, cotangent of out, lse, delta), tokens,
      params) to the gradients of q, k, v and, with a leading batch axis, of
      each parameter; delta [B, N, T] is out times its cotangent summed over
      channels, minus the cotangent of lse.
    channel_axis: channel axis of out.
  """

  @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
  def attention(settings, q, k, v, params, tokens):
    call = functools.partial(forward, settings)
    return over_batch(call, (q, k, v), tokens, params)

  def attention_forward(settings, q, k, v, params, tokens):
    out, lse = attention(settings, q, k, v, params, tokens)
    return (out, lse), (q, k, v, params, tokens, out, lse)

  def attention_backward(settings, residuals, cotangents):
    q, k, v, params, tokens, out, lse = residuals
    dout, dlse = cotangents
    products = out.astype(jnp.float32) * dout.astype(jnp.float32)
    delta = products.sum(channel_axis) - dlse
    call = functools.partial(backward, settings)
    batched = (q, k, v, dout, lse, delta)
    dq, dk, dv, dparams = over_batch(call, batched, tokens, params)
    return dq, dk, dv, jax.tree.map(lambda x: x.sum(0), dparams), None

  attention.defvjp(attention_forward, attention_backward)
  return attention


def compiler_params(settings, dimension_semantics):
  """Returns the compiler parameters of a kernel."""
  if settings.interpret:
    return pltpu.CompilerParams(dimension_semantics=dimension_semantics)
  capacity = pltpu.get_tpu_info().vmem_capacity_bytes
  return pltpu.CompilerParams(
      dimension_semantics=dimension_semantics,
      # The default of 16 MiB is too small for 16 heads.
      vmem_limit_bytes=capacity * 3 // 4,
  )


def matmul_precision(dtype):
  """Returns the precision of matrix products; bfloat16 has only the default."""
  if dtype == jnp.float32:
    return jax.lax.Precision.HIGHEST
  return jax.lax.Precision.DEFAULT


def whole_array(x) -> pl.BlockSpec:
  return pl.BlockSpec(x.shape, lambda *indices: (0,) * x.ndim)


def visible_blocks(settings, tokens, *, along_q):
  """Returns scalars that describe visible blocks, and an index map.

  Returns:
    (bounds of query blocks, bounds of key blocks, first, end): int32 arrays of
      rank 1, for scalar prefetch. first and end bound the key blocks that a
      query block needs, or with `along_q` the query blocks that a key block
      needs.
    A function (b, outer, inner, scalar refs) that returns inner clipped to that
      range, so that no other block is fetched.
  """

  def bounds(positions, ids, block):
    return tiling.block_bounds(
        positions[:, 0], None if ids is None else ids[:, 0], block
    )

  q = bounds(tokens.q_positions, tokens.q_ids, settings.block_q)
  kv = bounds(tokens.kv_positions, tokens.kv_ids, settings.block_kv)
  occupied = tiling.occupied_tiles(
      q, kv, causal=settings.causal, window=settings.window
  )
  if along_q:
    occupied = occupied.swapaxes(1, 2)
  first, end = tiling.block_range(occupied)
  num_rows, num_blocks = first.shape

  def index(b, outer, inner, refs):
    at = outer if num_rows == 1 else b * num_blocks + outer
    last = jnp.maximum(refs[-1][at] - 1, 0)
    return jnp.minimum(jnp.maximum(inner, refs[-2][at]), last)

  scalars = q, kv, first, end
  return jax.tree.map(lambda x: x.reshape(-1), scalars), index


def on_visible_tile(settings, bounds, num_blocks, indices, tile):
  """Calls tile(is_masked) if the tile has a visible pair.

  Args:
    settings: settings of the kernel.
    bounds: scalar refs of `visible_blocks` for query blocks and key blocks.
    num_blocks: number of query blocks and of key blocks in a batch element.
    indices: (b, query block, key block) of the program.
    tile: the body.
  """

  def at(refs, num_blocks, index):
    def read(ref):
      shared = ref.shape[0] == num_blocks
      return ref[index if shared else indices[0] * num_blocks + index]

    return jax.tree.map(read, refs)

  q, kv = map(at, bounds, num_blocks, indices[1:])
  static = {"causal": settings.causal, "window": settings.window}
  some = tiling.may_be_visible(q, kv, **static)
  every = tiling.all_visible(q, kv, **static)
  pl.when(every)(lambda: tile(False))
  pl.when(some & ~every)(lambda: tile(True))


def column(row_1xt):
  """Returns a row of numbers [1, t] as a column in all lanes, [t, 128]."""
  return jnp.broadcast_to(row_1xt, (LANES, row_1xt.shape[-1])).T


def in_width(x, width):
  """Returns `x`, constant over its 128 lanes, with `width` lanes."""
  if width > LANES:
    x = jnp.concatenate([x] * -(-width // LANES), axis=-1)
  return x[..., :width]


def query_key(q_NxqxH, k_KxSxH, precision):
  """Returns the product of each query head with its key head, [N, q, S]."""
  num_heads, num_queries, head_dim = q_NxqxH.shape
  out_KxGqxS = jax.lax.dot_general(
      q_NxqxH.reshape(len(k_KxSxH), -1, head_dim),
      k_KxSxH,
      (((2,), (2,)), ((0,), (0,))),
      precision=precision,
      preferred_element_type=jnp.float32,
  )
  return out_KxGqxS.reshape(num_heads, num_queries, -1)


def weighted_values(weight_NxqxS, v_KxSxH, precision):
  """Returns [N, q, H]."""
  num_heads, num_queries, num_keys = weight_NxqxS.shape
  weight_KxGqxS = weight_NxqxS.reshape(len(v_KxSxH), -1, num_keys)
  out_KxGqxH = jax.lax.dot_general(
      weight_KxGqxS.astype(v_KxSxH.dtype),
      v_KxSxH,
      (((2,), (1,)), ((0,), (0,))),
      precision=precision,
      preferred_element_type=jnp.float32,
  )
  return out_KxGqxH.reshape(num_heads, num_queries, -1)


def visible_strips(settings, columns, tokens, is_masked):
  """Returns which keys each query sees, bool [q, 128] for each strip of keys.

  Args:
    settings: settings of the kernel.
    columns: the queries' positions, and ids if any, [q, 128] each.
    tokens: refs, of which this reads those of keys.
    is_masked: False if all pairs are visible.
  """
  strips = []
  for c in range(settings.block_kv // LANES):
    strip = slice(c * LANES, (c + 1) * LANES)
    if not is_masked:
      strips.append(jnp.ones(columns[0].shape, bool))
      continue
    has_ids = tokens.q_ids is not None
    strips.append(
        visible_mask(
            columns[0],
            tokens.kv_positions[0, :, strip],
            columns[1] if has_ids else None,
            tokens.kv_ids[0, :, strip] if has_ids else None,
            causal=settings.causal,
            window=settings.window,
        )
    )
  return strips


def seen_rows(visibles, of_queries, of_keys):
  """Returns [heads, tokens, H] arrays with 0 at tokens without a visible pair.

  Such tokens may contain NaN, and 0 * NaN is NaN.
  """
  visibles = [visible.astype(jnp.float32) for visible in visibles]
  most = functools.reduce(jnp.maximum, visibles).max(axis=1, keepdims=True)
  q_sees = jnp.broadcast_to(most, visibles[0].shape)
  kv_seen = jnp.concatenate(
      [column(visible.max(axis=0, keepdims=True)) for visible in visibles]
  )

  def keep(x, seen):
    seen = in_width(seen, x.shape[-1])[None] > 0
    return jnp.where(seen, x.astype(jnp.float32), 0).astype(x.dtype)

  return (
      *(keep(x, q_sees) for x in of_queries),
      *(keep(x, kv_seen) for x in of_keys),
  )


def strip_tile(columns, tokens, c, visible, dtype):
  """Returns the `Tile` for strip `c` of the keys."""
  return Tile(
      columns[0],
      tokens.kv_positions[0, :, c * LANES : (c + 1) * LANES],
      visible,
      operand_dtype=None if dtype == jnp.float32 else dtype,
  )


def modified_scores(settings, tile, params, scores_NxqxS):
  """Returns a strip's scores after the score modifier, [N, q, 128]."""
  if settings.function is None:
    return scores_NxqxS
  return settings.function(params, scores_NxqxS, tile)


class QuerySums:
  """Gradients of queries, accumulated in HBM over the blocks of keys.

  Double-buffered in VMEM: while one block accumulates, the previous block is
  written back.

  Args:
    block: maps the index of a query block to its ref in HBM.
    slots_ref: VMEM [2, *block], float32.
    state_ref: SMEM [2]: the slot in use, and the index of the block that the
      other slot is being written to, or -1.
    semaphores: DMA semaphores for reading and for writing.
  """

  def __init__(self, block, slots_ref, state_ref, semaphores):
    self._block = block
    self._slots_ref = slots_ref
    self._state_ref = state_ref
    self._semaphores = semaphores

  def start(self):
    self._state_ref[0] = 0
    self._state_ref[1] = -1

  def add(self, i, gradient):
    """Adds gradient() to block i; computes it while the block is read."""
    slot = self._state_ref[0]
    pl.when(self._state_ref[1] == i)(self.finish_writing)
    reading = pltpu.make_async_copy(
        self._block(i), self._slots_ref.at[slot], self._semaphores.at[0]
    )
    reading.start()
    added = gradient()
    reading.wait()
    self._slots_ref[slot] += added
    self.finish_writing()
    self._writing(slot, i).start()
    self._state_ref[0] = 1 - slot
    self._state_ref[1] = i

  def _writing(self, slot, i):
    return pltpu.make_async_copy(
        self._slots_ref.at[slot], self._block(i), self._semaphores.at[1]
    )

  def finish_writing(self):
    @pl.when(self._state_ref[1] >= 0)
    def _():
      self._writing(1 - self._state_ref[0], self._state_ref[1]).wait()
      self._state_ref[1] = -1
