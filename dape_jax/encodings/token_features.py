"""Per-token inputs of tile functions, and biases from running sums."""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from dape_jax.array_typing import TileScores
from dape_jax.encodings.base import PositionalEncoding
from dape_jax.encodings.tile import AdditiveBias, Params, ScoreMod, Tile


def without_padding(x: jax.Array, segment_ids: jax.Array | None) -> jax.Array:
  """Returns x [B, T, ...] in float32 or wider, with zeros for padding tokens.

  Padding may hold anything, including NaN, and 0 * NaN is NaN. Replacing NaN
  before any other operation also keeps it out of gradients.

  Args:
    x: values of each token.
    segment_ids: [B, T] int32, 0 is padding; None for no padding.
  """
  x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  if segment_ids is None:
    return x
  kept = (segment_ids != 0).reshape(segment_ids.shape + (1,) * (x.ndim - 2))
  return jnp.where(kept, x, 0)


def given(features: Any, encoding: str) -> Any:
  """Returns a tile's features.

  Raises:
    ValueError: they are None.
  """
  if features is None:
    raise ValueError(
        f"{encoding} depends on the tokens: pass the q_features and kv_features"
        " that its method `features` returns."
    )
  return features


def running_sum(
    steps_BxTxN: jax.Array,
    segment_ids: jax.Array | None = None,
    previous: jax.Array | None = None,
) -> jax.Array:
  """Returns c_i, the sum of the steps up to and including token i, [B, T, 2 N].

  The sum runs over the whole row: contributions of earlier documents cancel in
  c_i - c_j.

  c is returned as two summands. A single float32 would be off by 0.01 at token
  65,536 and by 0.2 at a million. The first summand sums the steps rounded to
  multiples of 1/16, exact up to 2^20. The second sums the remainders, stays
  small and carries the gradient.

  Args:
    steps_BxTxN: float32 or wider.
    segment_ids: [B, T] int32; padding (id 0) is ignored.
    previous: [B, 2 N], the sum so far; None for 0.
  """
  steps = without_padding(steps_BxTxN, segment_ids)
  coarse = jax.lax.stop_gradient(jnp.round(16 * steps) / 16)
  sums = jnp.cumsum(jnp.concatenate([coarse, steps - coarse], -1), axis=1)
  if previous is None:
    return sums
  return previous[:, None].astype(sums.dtype) + sums


@dataclasses.dataclass(frozen=True)
class RunningSumTile(AdditiveBias):
  """B_h(i, j) = c_i - c_j for j <= i, c_j - c_i for j > i, by position.

  c is the feature of both queries and keys, from `running_sum`.
  """

  large_bias: ClassVar[bool] = True

  def bias(self, params: Params, tile: Tile, dtype: jnp.dtype) -> TileScores:
    del params
    of_queries = given(tile.q_features, "a bias of running sums").T.astype(
        dtype
    )
    of_keys = given(tile.kv_features, "a bias of running sums").T.astype(dtype)
    parts = of_queries[:, :, None] - of_keys[:, None, :]
    between = parts.reshape(2, -1, *parts.shape[1:]).sum(0)
    # Not -abs, whose gradient is 0 where two sums are equal.
    before = tile.kv_positions <= tile.q_positions
    return jnp.where(before[None], between, -between)


class RunningSum(PositionalEncoding):
  """B_h(i, j) = c_i - c_j, c the running sum of `steps` of x W + b."""

  num_heads: int

  @property
  def key_features(self) -> int:
    return 2 * self.num_heads

  def steps(self, logits: jax.Array) -> jax.Array:
    """Returns the step of each token, at most 0, in the shape of `logits`."""
    raise NotImplementedError

  @nn.compact
  def features(self, x, query, key, *, segment_ids=None, previous=None):
    del query, key
    x = without_padding(x, segment_ids)
    kernel = self.param(
        "kernel",
        nn.initializers.normal(0.02),
        (x.shape[-1], self.num_heads),
    ).astype(x.dtype)
    bias = self.param("bias", nn.initializers.zeros, (self.num_heads,))
    bias = bias.astype(x.dtype)[None, None]
    logits = jnp.matmul(x, kernel, precision="highest") + bias
    sums = running_sum(self.steps(logits), segment_ids, previous)
    return sums, sums

  def score_mod(self) -> ScoreMod:
    return ScoreMod({}, RunningSumTile())
