"""What an encoding is: a pure function of one tile of scores, and its module.

An encoding never sees a T x S matrix. Attention (any implementation of it)
hands it the scores of all N heads for some queries and some keys of one batch
element, with the integer positions of both, and takes back modified scores.
"""

import dataclasses
import functools
from typing import Any, ClassVar

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from dape_jax.array_typing import (
    KeyPositions,
    PerHead,
    QueryPositions,
    TileDistances,
    TileMask,
    TilePositions,
    TileScores,
)

Params = dict[str, Any]


@flax.struct.dataclass
class Tile:
  """Where a tile of scores lies.

  Attributes:
    q_positions: [t, 1] int32, position of each query within its document, ready
      to broadcast over the tile (a kernel may hand it broadcast already).
    kv_positions: [1, s + 2 halo] int32, of each key; -1 where no key exists.
    visible: [t, s + 2 halo] bool, which keys each query attends to (causality,
      documents, window and padding together). None means every key at or before
      the query.
    q_features, kv_features: per-token inputs of the encoding (trees of [t, ...]
      and [s + 2 halo, ...] arrays), or None.
    operand_dtype: what `pairwise_linear` rounds the operands of its matrix
      products to, or None for none: bfloat16 on a TPU with bfloat16 queries,
      where one pass of the matrix unit takes bfloat16 operands.
  """

  q_positions: QueryPositions
  kv_positions: KeyPositions
  visible: TileMask | None = None
  q_features: Any = None
  kv_features: Any = None
  operand_dtype: Any = flax.struct.field(pytree_node=False, default=None)

  def distances(self) -> TileDistances:
    """Returns |i - j| as exact int32, [t, s + 2 halo].

    Callers convert to float32 or wider, never to bfloat16, in which 257 is the
    first integer that is not exact.
    """
    return jnp.abs(self.q_positions - self.kv_positions)

  def visible_mask(self) -> TileMask:
    """Returns `visible`, or its meaning where it is None."""
    if self.visible is not None:
      return self.visible
    q, kv = self.q_positions, self.kv_positions
    return (kv <= q) & (kv >= 0)


def per_head(x: PerHead) -> jax.Array:
  """Returns one number per head ready to broadcast over a tile, [N, 1, 1].

  A kernel hands such a parameter as [N, s], a copy for each key of the tile;
  then the result is [N, 1, s], and its gradient comes apart for each key.
  """
  return x.reshape(x.shape[0], 1, -1)


def per_channel(x: PerHead) -> jax.Array:
  """Returns one number per channel ready to broadcast over pairs, [C, 1]."""
  return x.reshape(x.shape[0], -1)[:, :1]


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def leaky_relu(x: jax.Array, negative_slope: float) -> jax.Array:
  """Returns max(x, negative_slope x), for a slope of 1 or less.

  Two operations forward and two backward, half of what autodiff makes of it: in
  a kernel the hidden layers are the largest arrays. The gradient at 0 is the
  negative side's, as in PyTorch.
  """
  return jnp.maximum(x, negative_slope * x)


@leaky_relu.defjvp
def _leaky_relu_jvp(negative_slope, primals, tangents):
  (x,), (dx,) = primals, tangents
  out = leaky_relu(x, negative_slope)
  return out, jnp.where(x > 0, dx, negative_slope * dx)


def pairwise_linear(
    x_Cxtxs: jax.Array,
    kernel_CxE: jax.Array,
    operand_dtype: Any = None,
    *,
    split: bool = False,
) -> jax.Array:
  """Returns the linear map of the channels of every pair, [E, t, s].

  One plain matrix product over all pairs of the tile, kernel first: the result
  comes out channels first, untransposed.

  Args:
    x_Cxtxs: channels first; [C, P] pairs give [E, P].
    kernel_CxE: parameter.
    operand_dtype: see `Tile`.
    split: make up for the rounding of operands to first order: each is the sum
      of two rounded numbers, and of the four products three are taken. For
      channels that reach hundreds, where bfloat16 steps by 1 or 2.
  """
  x_CxP = x_Cxtxs.reshape(len(x_Cxtxs), -1)
  if len(x_CxP) == 1:
    out_ExP = kernel_CxE.reshape(-1, 1) * x_CxP
  elif operand_dtype is None:
    out_ExP = jnp.matmul(kernel_CxE.T, x_CxP, precision="highest")
  else:
    out_ExP = _rounded_matmul(x_CxP, kernel_CxE, operand_dtype, split)
  return out_ExP.reshape(-1, *x_Cxtxs.shape[1:])


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _rounded_matmul(x_CxP, kernel_CxE, dtype, split):
  """Returns kernel^T x, [E, P] float32, of operands rounded to `dtype`.

  So are the operands of its two gradients, which autodiff would leave as wide
  as the sums they come from.
  """
  return _rounded_matmul_forward(x_CxP, kernel_CxE, dtype, split)[0]


def _rounded_matmul_forward(x_CxP, kernel_CxE, dtype, split):
  residuals = x_CxP.astype(dtype), kernel_CxE.astype(dtype)
  if split:
    x, x_rest = _rounded_and_rest(x_CxP, dtype)
    kernel, kernel_rest = _rounded_and_rest(kernel_CxE, dtype)
    # One product: the matrix unit has room for three times the channels.
    x_CxP = jnp.concatenate([x, x_rest, x])
    kernel_CxE = jnp.concatenate([kernel, kernel, kernel_rest])
  out_ExP = _matmul(kernel_CxE.T.astype(dtype), x_CxP.astype(dtype))
  return out_ExP, residuals


def _rounded_matmul_backward(dtype, split, residuals, dout_ExP):
  del split
  x_CxP, kernel_CxE = residuals
  dout_ExP = dout_ExP.astype(dtype)
  return _matmul(kernel_CxE, dout_ExP), _matmul(x_CxP, dout_ExP.T)


_rounded_matmul.defvjp(_rounded_matmul_forward, _rounded_matmul_backward)


def _rounded_and_rest(x, dtype):
  rounded = x.astype(dtype).astype(x.dtype)
  return rounded, x - rounded


def _matmul(x, y):
  # Kernels refuse a wider default than bfloat16 operands have.
  precision = jax.lax.Precision.DEFAULT
  return jnp.matmul(
      x, y, precision=precision, preferred_element_type=jnp.float32
  )


@dataclasses.dataclass(frozen=True)
class TileFunction:
  """The static half of a ScoreMod: a hashable pure function of a tile.

  Class attributes:
    halo: neighbouring keys needed on each side of the tile. Scores and
      kv_positions come with them, the result without.
    scope: "tile", or "row" when whole rows are needed.
    large_bias: the bias reaches hundreds, where bfloat16 steps by 1 or 2.
    in_kernel: the function may be traced inside a TPU kernel: it broadcasts
      parameters [N] with `per_head` and `per_channel` only, takes scalars as
      arrays that may be [1, s], mixes channels with `pairwise_linear` only, and
      holds no constant arrays.
  """

  halo: ClassVar[int] = 0
  scope: ClassVar[str] = "tile"
  large_bias: ClassVar[bool] = False
  in_kernel: ClassVar[bool] = False

  def bias(
      self, params: Params, tile: Tile, dtype: jnp.dtype
  ) -> TileScores | None:
    """Returns what is added to the scores whatever they are, or None."""
    raise NotImplementedError

  def __call__(
      self, params: Params, scores: TileScores, tile: Tile
  ) -> TileScores:
    """Returns the modified scores [N, t, s] of scores [N, t, s + 2 halo]."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class AdditiveBias(TileFunction):
  """A = S + B: encodings that only define `bias`."""

  def __call__(
      self, params: Params, scores: TileScores, tile: Tile
  ) -> TileScores:
    bias = self.bias(params, tile, scores.dtype)
    if len(bias) != len(scores):
      raise ValueError(
          f"an encoding of {len(bias)} heads met scores of {len(scores)}."
      )
    return scores + bias


@flax.struct.dataclass
class ScoreMod:
  """Parameters and tile function of an encoding, ready for `attention`.

  Attributes:
    params: tree of small arrays; gradients flow to it.
    function: the static tile function.
  """

  params: Params
  function: TileFunction = flax.struct.field(pytree_node=False)

  @property
  def halo(self) -> int:
    return self.function.halo

  @property
  def scope(self) -> str:
    return self.function.scope

  def apply(self, params: Params, scores: TileScores, tile: Tile) -> TileScores:
    """Returns function(params, scores, tile), [N, t, s] in scores' dtype."""
    return self.function(params, scores, tile)


class PositionalEncoding(nn.Module):
  """Base of all encodings; holds parameters, the maths is in pure functions.

  A subclass has a field or property `num_heads` and overrides what it needs:
  `rotate` (the rotary family) or `score_mod` (everything that acts on scores).
  """

  def rotate(
      self,
      query: jax.Array,
      key: jax.Array,
      q_positions: jax.Array,
      kv_positions: jax.Array,
  ) -> tuple[jax.Array, jax.Array]:
    """Returns query [B, T, N, H] and key [B, S, K, H] rotated by position.

    Positions are int32 of shape [T] and [S], or [B, T] and [B, S].
    """
    del q_positions, kv_positions
    return query, key

  def score_mod(self) -> ScoreMod | None:
    """Returns what `attention` takes, or None if scores stay as they are."""
    return None

  def bias(
      self, q_positions: TilePositions, kv_positions: TilePositions
  ) -> TileScores:
    """Returns the static part B [N, t, s] in float32, for plots and tests."""
    score_mod = self.score_mod()
    bias = None
    if score_mod is not None:
      tile = Tile(
          jnp.asarray(q_positions, jnp.int32)[:, None],
          jnp.asarray(kv_positions, jnp.int32)[None, :],
      )
      bias = score_mod.function.bias(score_mod.params, tile, jnp.float32)
    if bias is None:
      shape = (self.num_heads, len(q_positions), len(kv_positions))
      bias = jnp.zeros(shape, jnp.float32)
    return bias


def symmetric_uniform(fan_in: int):
  """Returns the initialiser U(-1/sqrt(fan_in), 1/sqrt(fan_in))."""
  limit = fan_in**-0.5

  def init(key, shape, dtype=jnp.float32):
    return jax.random.uniform(key, shape, dtype, -limit, limit)

  return init
