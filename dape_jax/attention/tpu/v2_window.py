"""Windows of keys, shared by the Pallas TPU kernels of DAPE V2.

A tile has keys as rows and queries as lanes, [N, s, 128]. Flattened for a
matrix product, [N, s * 128], a pair and its neighbor at the next key are 128
lanes apart, a whole register. A convolution along keys is then a single product
of its kernel [E, k C] and the channels stacked at k offsets, without shifts
within registers.

A program holds a window of keys: its block, then the last `halo` keys of the
previous block, the first `halo` keys of the next block, and padding to whole
sublanes. Tiles are therefore independent, and may be visited in any order and
with gaps.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from dape_jax.attention import tiling
from dape_jax.attention.mask import visible_mask
from dape_jax.attention.tpu import common
from dape_jax.attention.tpu.common import LANES, Tokens
from dape_jax.encodings.dape import NEGATIVE_SLOPE
from dape_jax.encodings.pairwise import rounded
from dape_jax.encodings.tile import Tile

_SUBLANES = 8
# Pad channels to whole tiles of bfloat16, so that stacking them costs nothing.
_CHANNELS = 16


class Layers(NamedTuple):
  """Activations of the score network in a tile.

  C input channels, M hidden channels, kernel size k, P pairs.

  Attributes:
    scores: the modified scores, [N, s, 128].
    inputs: stacked inputs, [k C, P].
    pre_activation: hidden layer before the activation, [M, P].
    exists: [1, P], 0 where the hidden layer is padding, or None.
    hidden: stacked hidden layer, [k M, P].
  """

  scores: jax.Array
  inputs: jax.Array
  pre_activation: jax.Array
  exists: jax.Array | None
  hidden: jax.Array


class Window:
  """The pairs of a block of queries and a window of keys, inside a kernel.

  Attributes:
    visible: [rows, 128] bool, or None if all pairs are visible.
  """

  def __init__(self, settings, tokens, is_masked, dtype):
    """Reads positions and ids.

    Args:
      settings: settings of the kernel.
      tokens: refs for the queries and the window's keys.
      is_masked: False if all pairs are visible.
      dtype: dtype of queries, to which operands of matrix products are rounded.
    """
    self._function = settings.function
    self._block = settings.block_kv
    self._halo = settings.function.halo
    self._rows = _window_rows(settings)
    self._dtype = dtype
    self._splits = _splits(settings.function, dtype)
    q = tokens.q_positions[0]
    kv = common.column(tokens.kv_positions[0])[: self._rows]
    self.visible = None
    if is_masked:
      q_ids = kv_ids = None
      if tokens.q_ids is not None:
        q_ids = tokens.q_ids[0]
        kv_ids = common.column(tokens.kv_ids[0])[: self._rows]
      self.visible = visible_mask(
          q,
          kv,
          q_ids,
          kv_ids,
          causal=settings.causal,
          window=settings.window,
      )
    self._tile = Tile(
        q,
        kv,
        self.visible,
        operand_dtype=None if dtype == jnp.float32 else dtype,
    )

  def bias(self, base_params):
    """Returns the base encoding's bias [N, rows, 128], or None."""
    base = self._function.base
    if base is None:
      return None
    return base.bias(base_params, self._tile, jnp.float32)

  def masked(self, x_Nxsxt):
    """Returns x [N, rows, 128] with 0 at invisible pairs."""
    if self.visible is None:
      return x_Nxsxt
    return jnp.where(self.visible[None], x_Nxsxt, 0)

  def network(self, weights, scores_Nxsxt, bias_Nxsxt):
    """Returns the score network's `Layers`; see `DapeV2Tile`.

    Args:
      weights: values of `network_weights`.
      scores_Nxsxt, bias_Nxsxt: [N, rows, 128]; the bias may be None.
    """
    inputs = total = scores_Nxsxt
    if bias_Nxsxt is not None:
      inputs = jnp.concatenate([scores_Nxsxt, bias_Nxsxt])
      total = scores_Nxsxt + bias_Nxsxt
    inputs = self.masked(inputs)
    if self._splits:
      bias = inputs[len(scores_Nxsxt) :]
      rest = bias - rounded(bias, self._dtype)
      inputs = jnp.concatenate([inputs, rest, bias])
    inputs_CxP = self._stacked(
        self._in_order(self._flat(inputs)),
        self._block + self._halo,
    )
    pre_MxP = dot(weights["hidden"], inputs_CxP) + weights["hidden_bias"][:, :1]
    hidden_MxP = jnp.maximum(pre_MxP, NEGATIVE_SLOPE * pre_MxP)
    exists_1xP = self._hidden_exists()
    if exists_1xP is not None:
      hidden_MxP = exists_1xP * hidden_MxP
    operand_MxP = hidden_MxP.astype(self._dtype)
    if self._splits:
      rest_MxP = (hidden_MxP - operand_MxP).astype(self._dtype)
      operand_MxP = jnp.concatenate([operand_MxP, rest_MxP, operand_MxP])
    hidden_MxP = self._stacked(operand_MxP, self._block)
    out = dot(weights["output"], hidden_MxP).reshape(-1, self._block, LANES)
    return Layers(
        total[:, : self._block] + out,
        inputs_CxP,
        pre_MxP,
        exists_1xP,
        hidden_MxP,
    )

  def network_vjp(self, weights, layers, dscores_Nxsxt):
    """Returns gradients of the inputs [C, rows, 128] and of the weights.

    Excludes the residual connection around the network.
    """
    block, halo = self._block, self._halo
    num_heads = len(dscores_Nxsxt)
    num_inputs = num_heads if self._function.base is None else 2 * num_heads
    dout_NxP = self._flat(dscores_Nxsxt)
    dhidden_MxP = dot(
        weights["output_back"],
        self._stacked(self._between_zeros(dout_NxP), block + halo),
    )
    dpre_MxP = jnp.where(
        layers.pre_activation > 0, dhidden_MxP, NEGATIVE_SLOPE * dhidden_MxP
    )
    if layers.exists is not None:
      dpre_MxP = layers.exists * dpre_MxP
    keys = jnp.split(dpre_MxP, block + halo, axis=1)
    dpre_MxP = dpre_MxP.astype(self._dtype)
    dinputs_CxP = dot(
        weights["hidden_back"],
        self._stacked(self._between_zeros(dpre_MxP), block + 2 * halo),
    )
    dinputs_CxP = self._out_of_order(dinputs_CxP[:num_inputs])
    dweights = {
        "hidden": dot(dpre_MxP, layers.inputs, contract=(1, 1)),
        "hidden_bias": functools.reduce(jnp.add, keys),
        "output": dot(dout_NxP, layers.hidden, contract=(1, 1))[:num_heads],
    }
    return dinputs_CxP.reshape(num_inputs, self._rows, LANES), dweights

  def _hidden_exists(self):
    """Returns 1 or 0 for each pair of the hidden layer, [1, P], or None.

    See `DapeV2Tile._hidden_exists`.
    """
    if self.visible is None:
      return None
    pad = self._function.kernel_size // 2
    width = (self._block + self._halo) * LANES

    def at_keys(x_sxt, offset):
      x_1xP = self._in_order(x_sxt.astype(jnp.float32).reshape(1, -1))
      return x_1xP[:, (pad + offset) * LANES :][:, :width]

    exists = functools.reduce(
        jnp.maximum, [at_keys(self.visible, -k) for k in range(pad + 1)]
    )
    if self._function.edge == "zero":
      kv = self._tile.kv_positions
      exists *= at_keys(jnp.broadcast_to(kv >= 0, self.visible.shape), 0)
    return exists

  def _flat(self, x_Cxsxt):
    """Returns padded channels of all pairs, [C, P], in the operand dtype."""
    x = x_Cxsxt.astype(self._dtype)
    padding = -len(x) % _CHANNELS
    if padding:
      x = jnp.concatenate([x, jnp.zeros((padding, *x.shape[1:]), x.dtype)])
    return x.reshape(len(x), -1)

  def _in_order(self, x_CxP):
    """Returns a window's pairs with keys in order and without padding."""
    before = self._block * LANES
    after = before + self._halo * LANES
    end = after + self._halo * LANES
    return jnp.concatenate(
        [x_CxP[:, before:after], x_CxP[:, :before], x_CxP[:, after:end]], axis=1
    )

  def _out_of_order(self, x_CxP):
    """Inverts `_in_order`, with 0 in the padding."""
    block = self._halo * LANES
    after = block + self._block * LANES
    padding = self._rows * LANES - x_CxP.shape[1]
    parts = [x_CxP[:, block:after], x_CxP[:, :block], x_CxP[:, after:]]
    if padding:
      parts.append(jnp.zeros((len(x_CxP), padding), x_CxP.dtype))
    return jnp.concatenate(parts, axis=1)

  def _between_zeros(self, x_CxP):
    """Returns x with `halo` keys of zeros on each side."""
    zeros = jnp.zeros((len(x_CxP), self._halo * LANES), x_CxP.dtype)
    return jnp.concatenate([zeros, x_CxP, zeros], axis=1)

  def _stacked(self, x_CxP, num_keys):
    """Returns the channels of k neighboring keys stacked, [k C, P]."""
    return jnp.concatenate(
        [
            x_CxP[:, k * LANES : (k + num_keys) * LANES]
            for k in range(self._function.kernel_size)
        ]
    )


def dot(x, y, contract=None):
  """Returns x y, accumulated in float32 and batched over heads, if any.

  Args:
    x, y: [s, h] and [h, t], or [N, s, h] and [N, h, t].
    contract: the axes of x and y to sum over; those of h by default.
  """
  heads = x.ndim - 2
  x_axis, y_axis = contract or (x.ndim - 1, heads)
  batch = tuple(range(heads))
  return jax.lax.dot_general(
      x,
      y,
      (((x_axis,), (y_axis,)), (batch, batch)),
      precision=common.matmul_precision(x.dtype),
      preferred_element_type=jnp.float32,
  )


def repeat_heads(x_KxSxH, num_heads):
  """Returns the key/value head of each query head."""
  groups = num_heads // len(x_KxSxH)
  if groups == 1:
    return x_KxSxH
  return jnp.concatenate(
      [x_KxSxH[n // groups : n // groups + 1] for n in range(num_heads)]
  )


def seen(x, visible_sxt, axis):
  """Returns x [N, s, H] (axis 1) or [N, H, t] (axis 2) with 0 where unseen.

  Tokens without a visible pair may contain NaN, and 0 * NaN is NaN.
  """
  kept = visible_sxt.astype(jnp.float32).max(axis=2 - axis, keepdims=True)
  return jnp.where(kept[None] > 0, x.astype(jnp.float32), 0).astype(x.dtype)


# Outside the kernels: their inputs and block specifications.


class BlockSpecs:
  """Block specifications of the kernels' inputs and outputs.

  Attributes:
    tokens: specifications for `token_windows`.
  """

  def __init__(self, settings, tokens, *, q_index, kv_index):
    """Takes functions from (b, other indices, *scalars) to a block index."""
    self._settings = settings
    self._q_index = q_index
    self._kv_index = kv_index
    one_row = len(tokens.q_positions) == 1
    row = lambda b: 0 if one_row else b
    q = pl.BlockSpec(
        (1, 1, settings.block_q), lambda b, *i: (row(b), 0, q_index(b, *i))
    )
    kv = pl.BlockSpec(
        (1, None, 1, tokens.kv_positions.shape[-1]),
        lambda b, *i: (row(b), kv_index(b, *i), 0, 0),
    )
    has_ids = tokens.q_ids is not None
    self.tokens = Tokens(q, kv, q if has_ids else None, kv if has_ids else None)

  def queries(self, num_heads, width):
    """Returns the specification for [B, N, width, T]."""
    return pl.BlockSpec(
        (1, num_heads, width, self._settings.block_q),
        lambda b, *i: (b, 0, 0, self._q_index(b, *i)),
    )

  def keys(self, num_heads, width):
    """Returns the specification for [B, K, S, width]."""
    return pl.BlockSpec(
        (1, num_heads, self._settings.block_kv, width),
        lambda b, *i: (b, 0, self._kv_index(b, *i), 0),
    )

  def windows(self, num_heads, width):
    """Returns the specification for [B, K, S / block, rows, width]."""
    return pl.BlockSpec(
        (1, num_heads, None, _window_rows(self._settings), width),
        lambda b, *i: (b, 0, self._kv_index(b, *i), 0, 0),
    )


def _splits(function, dtype) -> bool:
  """Returns whether to split operands into sums of two rounded numbers.

  ALiBi's bias reaches hundreds, where bfloat16 has a spacing of 1 or 2, and the
  network's outputs partly cancel. The product of two split operands uses three
  terms, as extra channels: rounded * rounded, rest * rounded, rounded * rest.
  Scores are small and need no split, and nothing cancels in the backward pass.
  """
  return dtype != jnp.float32 and function.large_bias


def network_weights(function, params, dtype):
  """Returns the network's parameters in the layout of stacked channels.

  Returns:
    hidden [M, k C], hidden_bias [M, 128] and output [N, k M]; for the backward
    pass, with reversed offsets, hidden_back [C, k M] and output_back [M, k N];
    and `base`, unchanged. C, M and, in output_back, N are padded. hidden and
    output have extra channels if operands are split.
  """
  hidden_kxCxM = params["hidden_kernel"]
  output_kxMxN = _pad_channels(params["output_kernel"])
  num_heads = params["output_kernel"].shape[-1]
  ways = {
      "hidden_back": _pad_channels(hidden_kxCxM)[::-1],
      "output_back": output_kxMxN[::-1],
  }
  if _splits(function, dtype):
    bias = hidden_kxCxM[:, num_heads:]
    hidden_kxCxM = jnp.concatenate(
        [hidden_kxCxM, bias, bias - rounded(bias, dtype)], axis=1
    )
    rest = output_kxMxN - rounded(output_kxMxN, dtype)
    output_kxMxN = jnp.concatenate([output_kxMxN, output_kxMxN, rest], axis=1)
  ways["hidden"] = _pad_channels(hidden_kxCxM).swapaxes(1, 2)
  ways["output"] = output_kxMxN.swapaxes(1, 2)[:, :num_heads]
  bias_M = params["hidden_bias"]
  bias_M = jnp.pad(bias_M, (0, -len(bias_M) % _CHANNELS))
  return {
      **{
          name: jnp.concatenate(list(x_kxOxC), axis=-1).astype(dtype)
          for name, x_kxOxC in ways.items()
      },
      "hidden_bias": jnp.broadcast_to(bias_M[:, None], (len(bias_M), LANES)),
      "base": params["base"],
  }


def params_of_weights(params, dweights):
  """Converts gradients of the weights to gradients [B, *shape] of parameters.

  Args:
    params: the parameters.
    dweights: gradients [B, *shape] of `network_weights`' hidden, hidden_bias,
      output and base.
  """
  size, num_inputs, width = params["hidden_kernel"].shape
  num_heads = params["output_kernel"].shape[-1]

  def split(x_BxOxP, num_inputs, num_outputs):
    x_BxOxkxC = x_BxOxP.reshape(*x_BxOxP.shape[:2], size, -1)
    x_BxkxCxO = x_BxOxkxC.transpose(0, 2, 3, 1)
    return x_BxkxCxO[:, :, :num_inputs, :num_outputs]

  return {
      "hidden_kernel": split(dweights["hidden"], num_inputs, width),
      "hidden_bias": dweights["hidden_bias"].sum(-1)[:, :width],
      "output_kernel": split(dweights["output"], width, num_heads),
      "base": dweights["base"],
  }


def _pad_channels(x_kxCxM):
  widths = [(0, 0)] + [(0, -size % _CHANNELS) for size in x_kxCxM.shape[1:]]
  return jnp.pad(x_kxCxM, widths)


def _window_rows(settings) -> int:
  rows = settings.block_kv + 2 * settings.function.halo
  return rows + -rows % _SUBLANES


def _windows(settings, x, absent):
  """Returns windows [..., S / block, block + 2 halo, H] of x [..., S, H]."""
  halo, block = settings.function.halo, settings.block_kv
  x = x.reshape(*x.shape[:-2], -1, block, x.shape[-1])
  end = jnp.full((*x.shape[:-3], 1, halo, x.shape[-1]), absent, x.dtype)
  before = jnp.concatenate([end, x[..., :-1, block - halo :, :]], axis=-3)
  after = jnp.concatenate([x[..., 1:, :halo, :], end], axis=-3)
  return jnp.concatenate([x, before, after], axis=-2)


def key_windows(settings, k_BxKxSxH):
  """Returns windows of the keys, [B, K, S / block, rows, H]."""
  x = _windows(settings, k_BxKxSxH, 0)
  padding = _window_rows(settings) - x.shape[-2]
  return jnp.pad(x, [(0, 0)] * 3 + [(0, padding), (0, 0)])


def sum_windows(settings, x_BxKxWxRxH):
  """Returns [B, K, S, H], where each key sums its rows in all windows."""
  halo, block = settings.function.halo, settings.block_kv
  x = x_BxKxWxRxH
  out = x[..., :block, :]
  before = x[:, :, 1:, block : block + halo]
  after = x[:, :, :-1, block + halo : block + 2 * halo]
  out = out.at[:, :, :-1, block - halo :].add(before)
  out = out.at[:, :, 1:, :halo].add(after)
  return out.reshape(*x.shape[:2], -1, x.shape[-1])


def token_windows(settings, tokens):
  """Returns tokens with those of keys as windows [P, S / block, 1, lanes]."""

  def windows(x_Px1xS, absent):
    if x_Px1xS is None:
      return None
    x = _windows(settings, x_Px1xS[:, 0, :, None], absent)[..., 0]
    widths = ((0, 0), (0, 0), (0, -x.shape[-1] % LANES))
    return jnp.pad(x, widths, constant_values=absent)[:, :, None]

  return tokens.replace(
      kv_positions=windows(tokens.kv_positions, -1),
      kv_ids=windows(tokens.kv_ids, 0),
  )


def visible_windows(settings, tokens, *, along_q):
  """Returns `common.visible_blocks` with window bounds as the third scalar.

  A tile is visited if any pair of its block is visible, and needs no mask if
  all pairs of its window are.
  """
  scalars, index = common.visible_blocks(settings, tokens, along_q=along_q)

  def flat(x_Px1xS, absent):
    if x_Px1xS is None:
      return None
    return _windows(settings, x_Px1xS[:, 0, :, None], absent).reshape(
        len(x_Px1xS), -1
    )

  bounds = tiling.block_bounds(
      flat(tokens.kv_positions, -1),
      flat(tokens.kv_ids, 0),
      settings.block_kv + 2 * settings.function.halo,
  )
  bounds = jax.tree.map(lambda x: x.reshape(-1), bounds)
  return (*scalars[:2], bounds, *scalars[2:]), index


def on_visible_window(settings, bounds, num_blocks, indices, tile: Any):
  """Calls tile(is_masked) if the tile has a visible pair.

  Args:
    settings: settings of the kernel.
    bounds: scalar refs for query blocks, key blocks and windows.
    num_blocks: number of query blocks and of key blocks in a batch element.
    indices: (b, query block, key block) of the program.
    tile: the body.
  """
  b, i, j = indices

  def at(refs, num_blocks, index):
    def read(ref):
      is_shared = ref.shape[0] == num_blocks
      return ref[index if is_shared else b * num_blocks + index]

    return jax.tree.map(read, refs)

  q = at(bounds[0], num_blocks[0], i)
  block, window = (at(x, num_blocks[1], j) for x in bounds[1:])
  static = {"causal": settings.causal, "window": settings.window}
  some = tiling.may_be_visible(q, block, **static)
  every = tiling.all_visible(q, window, **static)
  pl.when(some & every)(lambda: tile(False))
  pl.when(some & ~every)(lambda: tile(True))
