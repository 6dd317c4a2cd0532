"""Score modifiers: pure functions of one tile of scores.

An encoding never sees a T x S matrix. Every implementation of attention passes
it the scores of all N heads for some queries and keys of one batch element,
with the integer positions of both, and gets modified scores back.
"""

import dataclasses
from typing import Any, ClassVar

import flax.struct
import jax
import jax.numpy as jnp

from dape_jax.array_typing import (
    KeyPositions,
    QueryPositions,
    TileDistances,
    TileMask,
    TileScores,
)

Params = dict[str, Any]


@flax.struct.dataclass
class Tile:
  """Positions, visibility and features of a tile of scores.

  Attributes:
    q_positions: [t, 1] int32, position of each query within its document,
      broadcastable over the tile (a kernel may pass it already broadcast).
    kv_positions: [1, s + 2 halo] int32, position of each key; -1 where no key
      exists.
    visible: [t, s + 2 halo] bool, which keys each query attends to (causality,
      documents, window and padding together). None means every key at or before
      the query.
    q_features, kv_features: results of `PositionalEncoding.features` (a tree of
      [t, ...] arrays, and [s + 2 halo, key_features]), or None.
    operand_dtype: dtype to which `pairwise.pairwise_linear` rounds its
      operands, or None. It is bfloat16 on TPU with bfloat16 queries, since one
      pass of the matrix unit takes bfloat16 operands.
  """

  q_positions: QueryPositions
  kv_positions: KeyPositions
  visible: TileMask | None = None
  q_features: Any = None
  kv_features: Any = None
  operand_dtype: Any = flax.struct.field(pytree_node=False, default=None)

  def distances(self) -> TileDistances:
    """Returns |i - j| as exact int32, [t, s + 2 halo].

    Convert to float32 or wider, never to bfloat16, which cannot represent
    integers from 257 on exactly.
    """
    return jnp.abs(self.q_positions - self.kv_positions)

  def visible_mask(self) -> TileMask:
    """Returns `visible`, or the default mask if it is None."""
    if self.visible is not None:
      return self.visible
    q, kv = self.q_positions, self.kv_positions
    return (kv <= q) & (kv >= 0)


@dataclasses.dataclass(frozen=True)
class TileFunction:
  """The static half of a ScoreMod: a hashable pure function of a tile.

  Class attributes:
    halo: neighboring keys needed on each side of the tile. Scores and
      kv_positions include them, the result does not.
    scope: "tile", or "row" if whole rows are needed.
    large_bias: whether the bias reaches hundreds, where bfloat16 has a spacing
      of 1 or 2.
    in_kernel: whether the function can be traced inside a TPU kernel. Such a
      function broadcasts parameters and mixes channels only with the functions
      of `pairwise`, accepts scalars as arrays that may be [1, s], and has no
      constant arrays.
  """

  halo: ClassVar[int] = 0
  scope: ClassVar[str] = "tile"
  large_bias: ClassVar[bool] = False
  in_kernel: ClassVar[bool] = False

  def bias(
      self, params: Params, tile: Tile, dtype: jnp.dtype
  ) -> TileScores | None:
    """Returns the bias, which does not depend on the scores, or None."""
    raise NotImplementedError

  def __call__(
      self, params: Params, scores: TileScores, tile: Tile
  ) -> TileScores:
    """Returns the modified scores [N, t, s] of scores [N, t, s + 2 halo]."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class AdditiveBias(TileFunction):
  """A = S + B, for encodings that only define `bias`."""

  def __call__(
      self, params: Params, scores: TileScores, tile: Tile
  ) -> TileScores:
    bias = self.bias(params, tile, scores.dtype)
    if len(bias) != len(scores):
      raise ValueError(
          f"encoding has {len(bias)} heads, but scores have {len(scores)}."
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

  def __call__(
      self,
      scores: jax.Array,
      q_positions: jax.Array,
      kv_positions: jax.Array,
      *,
      visible: jax.Array | None = None,
      q_features: Any = None,
      kv_features: Any = None,
  ) -> jax.Array:
    """Returns the modified scores of whole rows, for custom attention.

    All arguments but the positions have a batch axis if and only if `scores`
    has one; for positions it is optional. The caller must mask invisible keys.

    Args:
      scores: [N, T, S] or [B, N, T, S], already scaled; float32 or wider.
      q_positions, kv_positions: int32 [T] and [S], or [B, T] and [B, S].
      visible: [T, S] or [B, T, S] bool; None is every key at or before the
        query.
      q_features, kv_features: results of `PositionalEncoding.features`.
    """
    if scores.ndim == 4:
      batched = scores, q_positions, kv_positions, visible
      batched += (q_features, kv_features)
      axes = [
          jax.tree.map(lambda x, rank=rank: 0 if x.ndim > rank else None, x)
          for x, rank in zip(batched, (3, 1, 1, 2, 0, 0))
      ]

      def one(scores, q_positions, kv_positions, visible, q, kv):
        return self(
            scores,
            q_positions,
            kv_positions,
            visible=visible,
            q_features=q,
            kv_features=kv,
        )

      return jax.vmap(one, axes)(*batched)

    def padded(x, axis, value):
      widths = [(0, 0)] * x.ndim
      widths[axis] = (self.halo, self.halo)
      return jnp.pad(x, widths, constant_values=value)

    tile = Tile(
        q_positions[:, None],
        padded(kv_positions, 0, -1)[None, :],
        None if visible is None else padded(visible, 1, False),
        q_features,
        jax.tree.map(lambda x: padded(x, 0, 0), kv_features),
    )
    return self.apply(self.params, padded(scores, 2, 0), tile)
