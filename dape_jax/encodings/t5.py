"""T5's relative position bias: one learned number per distance bucket.

Raffel et al. 2020, arXiv 1910.10683.
"""

import dataclasses
import functools
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from dape_jax.encodings.base import PositionalEncoding
from dape_jax.encodings.pairwise import pairwise_linear
from dape_jax.encodings.tile import (
    AdditiveBias,
    Params,
    ScoreMod,
    Tile,
)
from dape_jax.errors import ConfigError

BEYOND = 2**31 - 1  # no distance reaches it


@functools.cache
def t5_bucket_borders(
    num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = False
) -> tuple[int, ...]:
  """Returns the first distance of each bucket of one side of the query.

  Half the buckets hold one distance each. The others grow geometrically up to
  max_distance; the last one holds it and everything beyond. Causal: num_buckets
  numbers, (0, 1, ..., 15, 16, 19, ..., 113) by default. Bidirectional: half
  that number, the same for both sides. A bucket that starts where the next one
  does is empty.

  The arithmetic follows the released code in float32, so that borders fall on
  the same integers.
  """
  buckets = num_buckets // 2 if bidirectional else num_buckets
  num_exact = buckets // 2
  distances = np.arange(max_distance + 1)
  ratios = np.maximum(distances, 1).astype(np.float32) / np.float32(num_exact)
  # Rounded from float64, the logarithm is the same number on all machines.
  logs = np.log(ratios.astype(np.float64)).astype(np.float32)
  steps = logs / np.float32(math.log(max_distance / num_exact))
  steps = (steps * np.float32(buckets - num_exact)).astype(np.int64)
  bucket_of = np.where(
      distances < num_exact,
      distances,
      np.minimum(num_exact + steps, buckets - 1),
  )
  return tuple(np.searchsorted(bucket_of, np.arange(buckets)).tolist())


def t5_buckets(
    tile: Tile,
    num_buckets: int,
    max_distance: int,
    bidirectional: bool,
    dtype: jnp.dtype,
) -> jax.Array:
  """Returns the one-hot bucket of each pair, [num_buckets, t, s].

  Causal: keys after the query are in bucket 0, like the query itself.
  Bidirectional: keys after the query use the upper half of the buckets.
  """
  borders = t5_bucket_borders(num_buckets, max_distance, bidirectional)
  forward = tile.q_positions - tile.kv_positions
  distances = jnp.abs(forward) if bidirectional else jnp.maximum(forward, 0)

  def column(borders):
    return jnp.stack([jnp.full_like(distances[:1], x) for x in borders])

  first, end = column(borders), column((*borders[1:], BEYOND))
  one_hot = (distances[None] >= first) & (distances[None] < end)
  one_hot = one_hot.astype(dtype)
  if bidirectional:
    after = (forward < 0).astype(dtype)[None]
    one_hot = jnp.concatenate([one_hot * (1 - after), one_hot * after])
  return one_hot


@dataclasses.dataclass(frozen=True)
class T5Tile(AdditiveBias):
  """B_h(i, j) = c table[bucket(i - j), h].

  The lookup is a one-hot matrix product, without gather or logarithm, in both
  XLA and kernels. With rounded operands, table values are accurate to 2^-17.
  """

  num_buckets: int = 32
  max_distance: int = 128
  bidirectional: bool = False
  multiplier: float = 1.0

  in_kernel: ClassVar[bool] = True

  def bias(self, params: Params, tile: Tile, dtype: jnp.dtype):
    table = self.multiplier * params["table"].astype(dtype)
    one_hot = t5_buckets(
        tile, self.num_buckets, self.max_distance, self.bidirectional, dtype
    )
    pairs = one_hot.reshape(len(one_hot), -1)
    out = pairwise_linear(pairs, table, tile.operand_dtype, split=True)
    return out.reshape(-1, *one_hot.shape[1:])


class T5(PositionalEncoding):
  """B_h(i, j) = c table[bucket(i - j), h].

  A learned table of one number per bucket and head, N(0, 0.02^2) at init (T5
  derives the std from the model's width, GPT-NeoX from the table's shape). The
  buckets are exactly those of T5 and Hugging Face transformers; all distances
  of max_distance or more share the last one. T5 shares one table between layers
  (`ModelConfig.share_encoding`). Keys after the query are in bucket 0 or, if
  bidirectional, in the other half of the buckets.

  Source: Raffel et al. 2020, section 2.1, arXiv 1910.10683.
  Extrapolates: no claim.

  Attributes:
    num_heads: N.
    num_buckets: rows of the table, for both sides together.
    max_distance: all distances from here on are in the last bucket.
    bidirectional: uses half the buckets for each side of the query.
    multiplier: c; T5 has none, GPT-NeoX's is the square root of the head dim.
  """

  num_heads: int
  num_buckets: int = 32
  max_distance: int = 128
  bidirectional: bool = False
  multiplier: float = 1.0

  def __post_init__(self):
    least = 4 if self.bidirectional else 2
    if self.num_buckets < least or (
        self.bidirectional and self.num_buckets % 2
    ):
      what = "even and 4 or more" if self.bidirectional else "2 or more"
      raise ConfigError(f"num_buckets={self.num_buckets}: must be {what}.")
    num_exact = self.num_buckets // (4 if self.bidirectional else 2)
    if self.max_distance <= num_exact:
      raise ConfigError(
          f"max_distance={self.max_distance}: must be above {num_exact}, the"
          " number of buckets that hold one distance."
      )
    super().__post_init__()

  def setup(self):
    self.table = self.param(
        "table",
        jax.nn.initializers.normal(0.02),
        (self.num_buckets, self.num_heads),
    )

  def score_mod(self) -> ScoreMod:
    function = T5Tile(
        self.num_buckets,
        self.max_distance,
        self.bidirectional,
        self.multiplier,
    )
    return ScoreMod({"table": self.table}, function)
