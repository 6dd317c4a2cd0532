"""Pallas TPU kernels for DAPE V2, with convolutions along keys: forward.

As in `forward.py`, a program computes the scores of all heads for a block of
queries and a block of keys in VMEM. Here the tile is transposed and has a halo
of keys, see `v2_window.py`. `v2_backward.py` has the backward kernel.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dape_jax.attention.mask import MASKED
from dape_jax.attention.tpu import common, forward
from dape_jax.attention.tpu import v2_window as windows
from dape_jax.attention.tpu.common import LANES, Settings, Tokens
from dape_jax.attention.tpu.v2_backward import backward
from dape_jax.encodings.dape_v2 import DapeV2Tile
from dape_jax.encodings.tile import ScoreMod


def unsupported(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    score_mod: ScoreMod | None,
    q_features: Any,
    kv_features: Any,
) -> str | None:
  """Returns a line on why the kernels do not support a call, or None."""
  if score_mod is None or not isinstance(score_mod.function, DapeV2Tile):
    return "the score modifier is not DAPE V2"
  function = score_mod.function
  if function.halo > LANES:
    return f"kernel_size={function.kernel_size} exceeds a block of keys"
  base = None
  if function.base is not None:
    base = ScoreMod(score_mod.params["base"], function.base)
  return forward.unsupported(query, key, value, base, q_features, kv_features)


def pallas_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    score_mod: ScoreMod,
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
  """Returns what `forward.pallas_attention` does, for DAPE V2.

  Raises:
    NotImplementedError: see `unsupported`.
  """
  reason = unsupported(query, key, value, score_mod, q_features, kv_features)
  if reason is not None:
    raise NotImplementedError(f"implementation='pallas_tpu': {reason}.")
  settings = Settings(
      score_mod.function, causal, window, scale, interpret, LANES, LANES
  )
  num_queries = query.shape[1]

  def tokens_padded(x, block, absent):
    # Positions shared by the batch stay one row, unless other tokens differ.
    if x is None:
      return None
    x = jnp.atleast_2d(x).astype(jnp.int32)
    return common.pad_tokens(x, 1, block, absent)[:, None]

  block_q, block_kv = settings.block_q, settings.block_kv
  tokens = common.broadcast_first(
      Tokens(
          tokens_padded(q_positions, block_q, -1),
          tokens_padded(kv_positions, block_kv, -1),
          tokens_padded(q_segment_ids, block_q, 0),
          tokens_padded(kv_segment_ids, block_kv, 0),
      )
  )
  params = dict(score_mod.params)
  params = {
      **jax.tree.map(lambda x: x.astype(jnp.float32), params),
      "base": jax.tree.map(common.in_lanes, params.get("base", {})),
  }
  keys_first = lambda x: common.pad_tokens(x, 1, block_kv, 0).swapaxes(1, 2)
  out_BxNxHxT, lse_BxNxT = _attention(
      settings,
      common.pad_tokens(query, 1, block_q, 0).transpose(0, 2, 3, 1),
      keys_first(key),
      keys_first(value),
      params,
      tokens,
  )
  out = out_BxNxHxT[..., :num_queries].transpose(0, 3, 1, 2)
  return out, lse_BxNxT[..., :num_queries].swapaxes(1, 2)


def _forward(settings, batched, tokens, params):
  """Runs the forward kernel; returns out [B, N, Hv, T] and lse [B, N, T]."""
  q_BxNxHxT, k_BxKxSxH, v_BxKxSxH = batched
  batch, num_heads, head_dim, num_queries = q_BxNxHxT.shape
  num_kv_heads, num_keys, value_dim = v_BxKxSxH.shape[1:]
  block_q, block_kv = settings.block_q, settings.block_kv
  num_blocks = num_queries // block_q, num_keys // block_kv
  scalars, kv_index = windows.visible_windows(settings, tokens, along_q=False)
  k_windows = windows.key_windows(settings, k_BxKxSxH)
  weights = windows.network_weights(settings.function, params, q_BxNxHxT.dtype)
  tokens = windows.token_windows(settings, tokens)
  specs = windows.BlockSpecs(
      settings,
      tokens,
      q_index=lambda b, i, j, *refs: i,
      kv_index=lambda b, i, j, *refs: kv_index(b, i, j, refs),
  )
  out, lse = pl.pallas_call(
      functools.partial(_forward_kernel, settings, num_blocks),
      out_shape=(
          jax.ShapeDtypeStruct(
              (batch, num_heads, value_dim, num_queries), q_BxNxHxT.dtype
          ),
          jax.ShapeDtypeStruct((batch, num_heads, 1, num_queries), jnp.float32),
      ),
      grid_spec=pltpu.PrefetchScalarGridSpec(
          num_scalar_prefetch=len(scalars),
          grid=(batch, *num_blocks),
          in_specs=[
              specs.queries(num_heads, head_dim),
              specs.windows(num_kv_heads, head_dim),
              specs.keys(num_kv_heads, value_dim),
              specs.tokens,
              jax.tree.map(common.whole_array, weights),
          ],
          out_specs=(
              specs.queries(num_heads, value_dim),
              specs.queries(num_heads, 1),
          ),
          scratch_shapes=[
              pltpu.VMEM((num_heads, 1, block_q), jnp.float32),
              pltpu.VMEM((num_heads, 1, block_q), jnp.float32),
              pltpu.VMEM((num_heads, value_dim, block_q), jnp.float32),
          ],
      ),
      compiler_params=common.compiler_params(
          settings, ("parallel", "parallel", "arbitrary")
      ),
      interpret=settings.interpret,
      name="dape_v2_forward",
  )(*scalars, q_BxNxHxT, k_windows, v_BxKxSxH, tokens, weights)
  return out, lse[:, :, 0]


def _forward_kernel(
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
    tokens,
    weights,
    out_ref,
    lse_ref,
    peak_ref,
    total_ref,
    sum_ref,
):
  """Processes one block of queries and one block of keys.

  Scratch holds each query's running maximum, total weight and weighted sum of
  values.
  """
  del first, end
  b, i, j = (pl.program_id(axis) for axis in range(3))
  num_heads = q_ref.shape[1]

  @pl.when(j == 0)
  def _():
    peak_ref[...] = jnp.full_like(peak_ref, MASKED)
    total_ref[...] = jnp.zeros_like(total_ref)
    sum_ref[...] = jnp.zeros_like(sum_ref)

  def tile(is_masked):
    weight_values = jax.tree.map(lambda ref: ref[...], weights)
    k, v = (windows.repeat_heads(x, num_heads) for x in (k_ref[0], v_ref[0]))
    window = windows.Window(settings, tokens, is_masked, q_ref.dtype)
    scores = settings.scale * windows.dot(k, q_ref[0])
    bias = window.bias(weight_values["base"])
    scores = window.network(weight_values, scores, bias).scores
    if is_masked:
      visible = window.visible[: settings.block_kv]
      scores = jnp.where(visible[None], scores, MASKED)
      v = windows.seen(v, visible, axis=1)
    old_peak = peak_ref[...]
    peak = jnp.maximum(old_peak, scores.max(axis=1, keepdims=True))
    # Before a query's first visible key, masked keys have weight
    # exp(MASKED - MASKED) = 1. The decay at that key removes them.
    decay = jnp.exp(old_peak - peak)
    probabilities = jnp.exp(scores - peak)
    total_ref[...] = decay * total_ref[...] + probabilities.sum(
        axis=1, keepdims=True
    )
    sum_ref[...] = decay * sum_ref[...] + windows.dot(
        v, probabilities.astype(v.dtype), contract=(1, 1)
    )
    peak_ref[...] = peak

  windows.on_visible_window(
      settings,
      (q_bounds, kv_bounds, window_bounds),
      num_blocks,
      (b, i, j),
      tile,
  )

  @pl.when(j == pl.num_programs(2) - 1)
  def _():
    peak, total = peak_ref[...], total_ref[...]
    sees = peak > 0.5 * MASKED
    total = jnp.where(sees, total, 1)
    out = sum_ref[...] * jnp.where(sees, 1 / total, 0)
    out_ref[0] = out.astype(out_ref.dtype)
    lse_ref[0] = jnp.where(sees, peak + jnp.log(total), MASKED)


_attention = common.differentiable(_forward, backward, channel_axis=2)
