"""ALiBi (Press et al. 2022, arXiv 2108.12409)."""

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from dape_jax.array_typing import PerHead
from dape_jax.encodings.base import PositionalEncoding
from dape_jax.encodings.tile import (
    AdditiveBias,
    Params,
    ScoreMod,
    Tile,
)


def alibi_slopes(num_heads: int) -> PerHead:
  """Returns the slope m_h of each head, [N] float64.

  m_h = 2^(-8 (h + 1) / N) when N is a power of two. Otherwise, the slopes for
  the next lower power of two, then every second slope for twice that power.
  """

  def geometric(n: int) -> np.ndarray:
    return 2.0 ** (-8.0 * np.arange(1, n + 1) / n)

  lower = 2 ** int(math.log2(num_heads))
  extra = geometric(2 * lower)[0::2][: num_heads - lower]
  return np.concatenate([geometric(lower), extra])


@dataclasses.dataclass(frozen=True)
class AlibiTile(AdditiveBias):
  """B_h(i, j) = -m_h |i - j|."""

  num_heads: int

  in_kernel: ClassVar[bool] = True
  large_bias: ClassVar[bool] = True

  def bias(self, params: Params, tile: Tile, dtype: jnp.dtype):
    del params
    distances = tile.distances().astype(dtype)
    # Python scalars: a kernel cannot hold constant arrays.
    slopes = alibi_slopes(self.num_heads).tolist()
    return jnp.stack([-slope * distances for slope in slopes])


class Alibi(PositionalEncoding):
  """B_h(i, j) = -m_h |i - j|.

  The slopes m_h are fixed, see `alibi_slopes`.

  Source: Press et al. 2022, section 3, arXiv 2108.12409.
  Extrapolates: yes.
  """

  num_heads: int

  def score_mod(self) -> ScoreMod:
    return ScoreMod(params={}, function=AlibiTile(self.num_heads))
