"""Attention as Pallas TPU kernels; the score modifier runs on tiles in VMEM.

A program holds the scores of all heads for a block of queries and a block of
keys, calls the encoding's tile function on them, a strip of 128 keys at a time,
and adds to the running softmax. This file has the forward kernel and what both
kernels share; `pallas_tpu_vjp.py` has the backward kernel.
"""

import dataclasses
import functools
import math
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dape_jax.attention import tiling
from dape_jax.attention.mask import MASKED
from dape_jax.encodings.base import ScoreMod, Tile, TileFunction

LANES = 128
_MIN_QUERIES = 16


@dataclasses.dataclass(frozen=True)
class Settings:
  """What the kernels are compiled for."""

  function: TileFunction | None
  causal: bool
  window: int | None
  scale: float
  interpret: Any
  block_q: int
  block_kv: int


@flax.struct.dataclass
class Tokens:
  """Positions [P, 1, T] and [P, 1, S], and ids alike or None; P is B or 1."""

  q_positions: jax.Array
  kv_positions: jax.Array
  q_ids: jax.Array | None
  kv_ids: jax.Array | None


def unsupported(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    score_mod: ScoreMod | None,
    q_features: Any,
    kv_features: Any,
) -> str | None:
  """Returns why the kernels do not do this call, in one line, or None."""
  if q_features is not None or kv_features is not None:
    return "the kernels take no features of tokens"
  if score_mod is not None:
    name = type(score_mod.function).__name__
    if score_mod.scope == "row":
      return f"{name} needs whole rows of scores, the kernels have tiles"
    if not score_mod.function.in_kernel:
      return f"{name} is not written to be traced inside a kernel"
    if score_mod.halo:
      return f"{name} reads neighbouring keys, which the kernels do not hold"
  for name, array in (("query", query), ("key", key), ("value", value)):
    if array.dtype not in (jnp.float32, jnp.bfloat16):
      return f"{name} is {array.dtype}; the kernels take float32 and bfloat16"
    if array.dtype != query.dtype:
      return f"query is {query.dtype} but {name} {array.dtype}"
  batch, num_queries = query.shape[:2]
  if num_queries < _MIN_QUERIES:
    return f"{num_queries} queries fill too little of a tile"
  devices = math.prod(_mesh_axes().values())
  if batch % devices:
    return f"a batch of {batch} does not divide over {devices} devices"
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
  """Returns attention of `api.attention`'s arguments and its log-sum-exp.

  Scores, bias and softmax are float32. On bfloat16 input the operands of all
  matrix products, those of the score network included, are bfloat16, and
  products are summed in float32. Memory beyond the result is linear in length.

  Args:
    interpret: True runs the kernels on any machine, by their meaning;
      `pltpu.InterpretParams` simulates a TPU and finds races, on one device.

  Returns:
    [B, T, N, Hv] in query's dtype and [B, T, N] float32; 0 and -1e30 where a
    query sees nothing. Differentiable in both.

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
    padded = pad_tokens(x_BxTxNxH, 1, block, 0)
    return padded.swapaxes(1, 2)

  def rows(x, block, absent):
    # Positions that the batch shares stay one row, unless anything differs.
    if x is None:
      return None
    x = jnp.atleast_2d(x).astype(jnp.int32)
    return pad_tokens(x, 1, block, absent)[:, None]

  block_q, block_kv = settings.block_q, settings.block_kv
  tokens = Tokens(
      rows(q_positions, block_q, -1),
      rows(kv_positions, block_kv, -1),
      rows(q_segment_ids, block_q, 0),
      rows(kv_segment_ids, block_kv, 0),
  )
  tokens = broadcast_first(tokens)
  params = {} if score_mod is None else score_mod.params
  out_BxNxTxH, lse_BxNxT = _attention(
      settings,
      heads_first(query, block_q),
      heads_first(key, block_kv),
      heads_first(value, block_kv),
      jax.tree.map(in_lanes, params),
      tokens,
  )
  return (
      out_BxNxTxH[:, :, :num_queries].swapaxes(1, 2),
      lse_BxNxT[:, :, :num_queries].swapaxes(1, 2),
  )


def _block_of_keys(num_heads: int, num_keys: int) -> int:
  """Returns how many keys a tile has.

  Wide tiles take fewer steps, but much of them is hidden by causality in short
  sequences, and the scores of many heads do not fit into VMEM.
  """
  return 2 * LANES if num_keys >= 1024 and num_heads <= 16 else LANES


def pad_tokens(x: jax.Array, axis: int, block: int, value) -> jax.Array:
  widths = [(0, 0)] * x.ndim
  widths[axis] = (0, -x.shape[axis] % block)
  return jnp.pad(x, widths, constant_values=value)


def broadcast_first(tree):
  """Returns the arrays with equal first axes."""
  size = max(len(x) for x in jax.tree.leaves(tree))
  return jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape[1:])), tree)


def in_lanes(x: jax.Array) -> jax.Array:
  """Returns a parameter as kernels take it: numbers per head in every lane."""
  x = x.astype(jnp.float32)
  if x.ndim > 1:
    return x
  return jnp.broadcast_to(jnp.atleast_1d(x)[:, None], (x.size, LANES))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(settings, q_BxNxTxH, k_BxKxSxH, v_BxKxSxH, params, tokens):
  """Returns out [B, N, T, Hv] and lse [B, N, T] of whole blocks."""
  return over_batch(
      functools.partial(_forward, settings),
      (q_BxNxTxH, k_BxKxSxH, v_BxKxSxH),
      tokens,
      params,
  )


def _attention_forward(settings, q, k, v, params, tokens):
  out, lse = _attention(settings, q, k, v, params, tokens)
  return (out, lse), (q, k, v, params, tokens, out, lse)


def _attention_backward(settings, residuals, cotangents):
  # Imported here since the backward kernel is built from parts of this file.
  from dape_jax.attention import pallas_tpu_vjp

  q, k, v, params, tokens, out, lse = residuals
  dout, dlse = cotangents
  delta = jnp.einsum(
      "bnth,bnth->bnt",
      out,
      dout,
      precision="highest",
      preferred_element_type=jnp.float32,
  )
  dq, dk, dv, dparams = over_batch(
      functools.partial(pallas_tpu_vjp.backward, settings),
      (q, k, v, dout, lse, delta - dlse),
      tokens,
      params,
  )
  dparams = jax.tree.map(lambda x: x.sum((0, 1)), dparams)
  return dq, dk, dv, dparams, None


_attention.defvjp(_attention_forward, _attention_backward)


def _mesh_axes() -> dict[str, int]:
  """Returns the axes that the compiler would split arrays over, and sizes."""
  mesh = jax.sharding.get_abstract_mesh()
  return {
      name: size
      for name, size, kind in zip(
          mesh.axis_names, mesh.axis_sizes, mesh.axis_types
      )
      if kind == jax.sharding.AxisType.Auto and size > 1
  }


def over_batch(function, batched, tokens, params):
  """Returns function(batched, tokens, params) on each device's part of it.

  Results have the batch first. Under `jax.vmap` the mapped axis becomes part of
  the batch, unless parameters differ along it.
  """

  @jax.custom_batching.custom_vmap
  def call(batched, tokens, params):
    axes = _mesh_axes()
    if not axes:
      return function(batched, tokens, params)
    split = jax.sharding.PartitionSpec(tuple(axes))
    whole = jax.sharding.PartitionSpec()
    shared = len(tokens.q_positions) < len(batched[0])
    return jax.shard_map(
        function,
        in_specs=(split, whole if shared else split, whole),
        out_specs=split,
        axis_names=set(axes),
        check_vma=False,
    )(batched, tokens, params)

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


def _forward(settings, batched, tokens, params):
  """Returns out [B, N, T, Hv] and lse [B, N, T] by the forward kernel."""
  q_BxNxTxH, k_BxKxSxH, v_BxKxSxH = batched
  batch, num_heads, num_queries, head_dim = q_BxNxTxH.shape
  num_kv_heads, num_keys, value_dim = v_BxKxSxH.shape[1:]
  block_q, block_kv = settings.block_q, settings.block_kv
  grid = batch, num_queries // block_q, num_keys // block_kv
  scalars, kv_index = visible_blocks(settings, tokens, along_q=False)
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
              jax.tree.map(whole_array, params),
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
      compiler_params=compiler_params(
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
  """One block of queries meets one block of keys.

  Scratch: running peak, total weight and weighted sum of values of each query,
  and the positions and ids of the queries as columns.
  """
  del first, end
  b, i, j = (pl.program_id(axis) for axis in range(3))
  precision = matmul_precision(q_ref.dtype)
  value_dim = v_ref.shape[-1]

  @pl.when(j == 0)
  def _():
    peak_ref[...] = jnp.full_like(peak_ref, MASKED)
    total_ref[...] = jnp.zeros_like(total_ref)
    sum_ref[...] = jnp.zeros_like(sum_ref)
    columns_ref[0] = column(tokens.q_positions[0])
    if tokens.q_ids is not None:
      columns_ref[1] = column(tokens.q_ids[0])

  def tile(is_masked):
    q_columns = columns_ref[...]
    q, k, v = q_ref[0], k_ref[0], v_ref[0]
    visibles = visible_strips(settings, q_columns, tokens, is_masked)
    if is_masked:
      q, k, v = seen_rows(visibles, (q,), (k, v))
    scores = settings.scale * query_key(q, k, precision)
    strips = []
    for c, visible in enumerate(visibles):
      strip = scores[:, :, c * LANES : (c + 1) * LANES]
      strip = modified_scores(
          settings,
          strip_tile(q_columns, tokens, c, visible, q.dtype),
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
    # What is summed of a query before its first visible key has weight
    # exp(MASKED - MASKED), and vanishes here when that key comes.
    decay = jnp.exp(old_peak - peak)
    weights = [jnp.exp(strip - peak) for strip in strips]
    total_ref[...] = decay * total_ref[...] + functools.reduce(
        jnp.add, weights
    ).sum(axis=2, keepdims=True)
    weighted = sum_ref[...] * in_width(decay, value_dim)
    for c, weight in enumerate(weights):
      weighted += weighted_values(
          weight, v[:, c * LANES : (c + 1) * LANES], precision
      )
    sum_ref[...] = weighted
    peak_ref[...] = peak

  bounds = q_bounds, kv_bounds
  on_visible_tile(settings, bounds, num_blocks, (b, i, j), tile)

  @pl.when(j == pl.num_programs(2) - 1)
  def _():
    peak, total = peak_ref[...], total_ref[...]
    seen = peak > 0.5 * MASKED
    total = jnp.where(seen, total, 1)
    scale = jnp.where(seen, 1 / total, 0)
    out = sum_ref[...] * in_width(scale, value_dim)
    out_ref[0] = out.astype(out_ref.dtype)
    lse = jnp.where(seen, peak + jnp.log(total), MASKED)
    for n in range(len(lse)):
      lse_ref[0, n : n + 1, :] = lse[n].T[:1]


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


# What both kernels share.


def compiler_params(settings, dimension_semantics):
  """Returns how to compile a kernel."""
  if settings.interpret:
    return pltpu.CompilerParams(dimension_semantics=dimension_semantics)
  capacity = pltpu.get_tpu_info().vmem_capacity_bytes
  return pltpu.CompilerParams(
      dimension_semantics=dimension_semantics,
      # The default of 16 MiB is too little for 16 heads.
      vmem_limit_bytes=capacity * 3 // 4,
  )


def matmul_precision(dtype):
  """Returns the precision of products; bfloat16 operands have only one."""
  if dtype == jnp.float32:
    return jax.lax.Precision.HIGHEST
  return jax.lax.Precision.DEFAULT


def whole_array(x) -> pl.BlockSpec:
  return pl.BlockSpec(x.shape, lambda *indices: (0,) * x.ndim)


def visible_blocks(settings, tokens, *, along_q):
  """Returns which blocks hold visible pairs, as scalars, and an index map.

  Returns:
    (bounds of query blocks, of key blocks, first, end): int32 arrays of one
    axis, as kernels prefetch scalars. first and end bound the key blocks that a
    query block needs, or if `along_q` the query blocks that a key block needs.
    A function (b, outer, inner, scalar refs) -> inner clipped to that range, so
    that no other block is fetched.
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
  """Calls tile(is_masked) unless no query of the tile sees any key of it.

  Args:
    settings: of the kernel.
    bounds: scalar refs of `visible_blocks`, of query blocks and key blocks.
    num_blocks: of queries and of keys in a batch element.
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
  """Returns numbers of queries down the rows of a tile, [t, 128]."""
  return jnp.broadcast_to(row_1xt, (LANES, row_1xt.shape[-1])).T


def in_width(x, width):
  """Returns numbers that are equal in all of 128 lanes in `width` lanes."""
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


def visible_strips(settings, columns, tokens, is_masked):
  """Returns which keys each query sees, bool [q, 128] for each strip of keys.

  Args:
    settings: of the kernel.
    columns: positions, and ids if there are any, of the queries, [q, 128] each.
    tokens: refs; of them the keys' rows are read.
    is_masked: False where all of them are visible.
  """
  strips = []
  for c in range(settings.block_kv // LANES):
    strip = slice(c * LANES, (c + 1) * LANES)
    if not is_masked:
      strips.append(jnp.ones(columns[0].shape, bool))
      continue
    q = columns[0]
    kv = tokens.kv_positions[0, :, strip]
    visible = kv >= 0
    if settings.causal:
      visible = visible & (kv <= q)
    if settings.window is not None:
      visible = visible & (jnp.abs(q - kv) < settings.window)
    if tokens.q_ids is not None:
      ids = columns[1]
      visible = visible & (ids == tokens.kv_ids[0, :, strip]) & (ids != 0)
    strips.append(jnp.broadcast_to(visible, q.shape))
  return strips


def seen_rows(visibles, of_queries, of_keys):
  """Returns [heads, tokens, H] arrays with 0 where nothing sees the token.

  What takes no part may hold anything, NaN included: 0 * NaN is NaN.
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
  """Returns the Tile of strip `c` of the keys."""
  return Tile(
      columns[0],
      tokens.kv_positions[0, :, c * LANES : (c + 1) * LANES],
      visible,
      operand_dtype=None if dtype == jnp.float32 else dtype,
  )


def modified_scores(settings, tile, params, scores_NxqxS):
  """Returns the encoding's scores of a strip, [N, q, 128]."""
  if settings.function is None:
    return scores_NxqxS
  return settings.function(params, scores_NxqxS, tile)
