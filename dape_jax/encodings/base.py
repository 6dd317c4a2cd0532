"""Base class of all encodings: Linen modules that hold parameters.

The math is in pure functions, most of which act on one tile of scores (see
`tile`).
"""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from dape_jax.array_typing import TilePositions, TileScores
from dape_jax.encodings.tile import ScoreMod, Tile


class PositionalEncoding(nn.Module):
  """Base class of all encodings; holds parameters only.

  A subclass has a field or property `num_heads` and overrides what it needs:
  `embed` (absolute encodings), `rotate` (the rotary family), `scale_query`,
  `features` (per-token inputs of the tile function), `sink`, and `score_mod`
  (everything that acts on scores). `dape_jax.attend` calls all but `embed`.

  Attributes of the class or module:
    is_absolute: whether it acts on the embedded tokens (once, in `embed`).
    key_features: K_f, float32 numbers that a cache stores per key; 0 for none.
  """

  is_absolute: ClassVar[bool] = False
  key_features: ClassVar[int] = 0

  def embed(self, x: jax.Array, positions: jax.Array) -> jax.Array:
    """Returns embedded tokens x [B, T, D] with encoded positions, in its dtype.

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
    """Returns query [B, T, N, H] scaled by the number of keys it attends to.

    num_visible is int32 [T] or [B, T], 0 for padding.
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
    """Returns the per-query and per-key inputs of the tile function.

    `init` through this method creates all parameters of the encoding.

    Args:
      x: [B, T, D], the input of the projections to query, key and value.
      query, key: [B, T, N, H] and [B, T, K, H] of the same tokens, not rotated.
      segment_ids: [B, T] int32; tokens with id 0 are padding and are ignored.
      previous: [B, key_features] float32, key features of the last token in the
        cache; None without a cache.

    Returns:
      A tree of [B, T, ...] arrays, and [B, T, key_features], float32 or wider;
      either may be None.
    """
    del x, query, key, segment_ids, previous
    return None, None

  def position_limit(self) -> int | None:
    """Returns the number of supported positions; None for no limit."""
    return None

  def sink(self) -> jax.Array | None:
    """Returns an extra logit for each head's softmax, [N], or None."""
    return None

  def score_mod(self) -> ScoreMod | None:
    """Returns the score modifier for `attention`; None if there is none."""
    return None

  def bias(
      self,
      q_positions: TilePositions,
      kv_positions: TilePositions,
      q_features: Any = None,
      kv_features: Any = None,
  ) -> TileScores:
    """Returns the static bias B [N, t, s] in float32, for plots and tests.

    The features are those of one batch element.
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
  """Returns the initializer U(-1/sqrt(fan_in), 1/sqrt(fan_in))."""
  limit = fan_in**-0.5

  def init(key, shape, dtype=jnp.float32):
    return jax.random.uniform(key, shape, dtype, -limit, limit)

  return init
