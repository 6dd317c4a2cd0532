"""What an encoding is: a pure function of one tile of scores, and its module.

An encoding never sees a T x S matrix. Attention (any implementation of it)
hands it the scores of all N heads for some queries and some keys of one batch
element, with the integer positions of both, and takes back modified scores.
"""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from dape_jax.array_typing import (
    KeyPositions,
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
    q_features, kv_features: what `PositionalEncoding.features` made of the tokens
      (a tree of [t, ...] arrays, and [s + 2 halo, key_features]), or None.
    operand_dtype: what `pairwise.pairwise_linear` rounds the operands of its matrix
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


@dataclasses.dataclass(frozen=True)
class TileFunction:
  """The static half of a ScoreMod: a hashable pure function of a tile.

  Class attributes:
    halo: neighbouring keys needed on each side of the tile. Scores and
      kv_positions come with them, the result without.
    scope: "tile", or "row" when whole rows are needed.
    large_bias: the bias reaches hundreds, where bfloat16 steps by 1 or 2.
    in_kernel: the function may be traced inside a TPU kernel: it broadcasts
      parameters with the functions of `pairwise` only, takes scalars as
      arrays that may be [1, s], mixes channels with those only, and holds no constant arrays.
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
    """Returns the modified scores of whole rows, for an attention of your own.

    Everything but the positions has a batch axis exactly if `scores` has one;
    positions may have it. Hiding what is not visible is left to the caller.

    Args:
      scores: [N, T, S] or [B, N, T, S], already scaled; float32 or wider.
      q_positions, kv_positions: int32 [T] and [S], or [B, T] and [B, S].
      visible: [T, S] or [B, T, S] bool; None is every key at or before the query.
      q_features, kv_features: of `PositionalEncoding.features`.
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


class PositionalEncoding(nn.Module):
  """Base of all encodings; holds parameters, the maths is in pure functions.

  A subclass has a field or property `num_heads` and overrides what it needs:
  `embed` (absolute encodings), `rotate` (the rotary family), `scale_query`,
  `features` (per-token inputs of the tile function), `sink`, and `score_mod`
  (everything that acts on scores). `dape_jax.attend` calls all but `embed`.

  Attributes of the class or module:
    is_absolute: acts on the model's embedded tokens, once, by `embed`.
    key_features: float32 numbers per key that a cache keeps, K_f; 0 is none.
  """

  is_absolute: ClassVar[bool] = False
  key_features: ClassVar[int] = 0

  def embed(self, x: jax.Array, positions: jax.Array) -> jax.Array:
    """Returns embedded tokens [B, T, D] with their positions, in x's dtype.

    Positions are int32 [T] or [B, T].
    """
    del positions
    return x

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

  def scale_query(self, query: jax.Array, num_visible: jax.Array) -> jax.Array:
    """Returns query [B, T, N, H] scaled by how many keys each query sees.

    num_visible is int32 [T] or [B, T], and 0 for padding.
    """
    del num_visible
    return query

  def features(
      self,
      x: jax.Array,
      query: jax.Array,
      key: jax.Array,
      *,
      segment_ids: jax.Array | None = None,
      previous: jax.Array | None = None,
  ) -> tuple[Any, jax.Array | None]:
    """Returns the tile function's inputs of each query and of each key.

    `init` through this method creates all parameters of an encoding.

    Args:
      x: [B, T, D], the input of the projections to query, key and value.
      query, key: [B, T, N, H] and [B, T, K, H] of the same tokens, not rotated.
      segment_ids: [B, T] int32; tokens of id 0 are padding and count nothing.
      previous: [B, key_features] float32, the key features of the token before
        these in the cache; None where there is none.

    Returns:
      A tree of [B, T, ...] arrays, and [B, T, key_features], float32 or wider; or
      None for either.
    """
    del x, query, key, segment_ids, previous
    return None, None

  def position_limit(self) -> int | None:
    """Returns how many positions there are numbers for; None is no limit."""
    return None

  def sink(self) -> jax.Array | None:
    """Returns one more logit of each head's softmax, [N], or None."""
    return None

  def score_mod(self) -> ScoreMod | None:
    """Returns what `attention` takes, or None if scores stay as they are."""
    return None

  def bias(
      self,
      q_positions: TilePositions,
      kv_positions: TilePositions,
      q_features: Any = None,
      kv_features: Any = None,
  ) -> TileScores:
    """Returns the static part B [N, t, s] in float32, for plots and tests.

    Features are those of one batch element.
    """
    score_mod = self.score_mod()
    bias = None
    if score_mod is not None:
      tile = Tile(
          jnp.asarray(q_positions, jnp.int32)[:, None],
          jnp.asarray(kv_positions, jnp.int32)[None, :],
          q_features=q_features,
          kv_features=kv_features,
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
