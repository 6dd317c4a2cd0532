"""DAPE V2 (arXiv 2410.04798) around any base: attention maps as images.

As DAPE (see `dape`), with a network that also sees the neighbouring keys.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from dape_jax.array_typing import TileScores
from dape_jax.encodings.around import TileAround
from dape_jax.encodings.dape import NEGATIVE_SLOPE, AroundAdditive
from dape_jax.encodings.pairwise import (
    leaky_relu,
    pairwise_convolve,
    per_head,
)
from dape_jax.encodings.tile import (
    Params,
    Tile,
)
from dape_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class DapeV2Tile(TileAround):
  """A = S + B + g([S; B]), g two convolutions of width k along the keys."""

  kernel_size: int
  edge: str

  @property
  def halo(self) -> int:
    return self.kernel_size - 1

  def __call__(
      self, params: Params, scores: TileScores, tile: Tile
  ) -> TileScores:
    dtype = scores.dtype
    visible = tile.visible_mask()

    bias = self.bias(params, tile, dtype)
    inputs = total = scores
    if bias is not None:
      inputs = jnp.concatenate([scores, bias])
      total = scores + bias
    inputs = jnp.where(visible[None], inputs, 0)

    hidden_kernel, hidden_bias, output_kernel = (
        params[name].astype(dtype)
        for name in ("hidden_kernel", "hidden_bias", "output_kernel")
    )
    convolve = functools.partial(
        pairwise_convolve,
        operand_dtype=tile.operand_dtype,
        split=self.large_bias,
    )
    hidden = convolve(inputs, hidden_kernel) + per_head(hidden_bias)
    hidden = leaky_relu(hidden, NEGATIVE_SLOPE)
    hidden = jnp.where(self._hidden_exists(tile, visible)[None], hidden, 0)

    out = convolve(hidden, output_kernel)
    return total[..., self.halo : scores.shape[-1] - self.halo] + out

  def _hidden_exists(self, tile: Tile, visible: jax.Array) -> jax.Array:
    """Returns which hidden columns are not padding, [t, s + 2 pad].

    Left of the document (or window) the hidden layer is padded with zeros.
    Right of the query it goes on, with inputs 0.
    """
    pad = self.kernel_size // 2
    width = visible.shape[-1] - 2 * pad
    exists = visible[:, pad : pad + width]
    for offset in range(1, pad + 1):
      exists = exists | visible[:, pad - offset : pad - offset + width]
    if self.edge == "zero":
      in_matrix = tile.kv_positions[:, pad : pad + width] >= 0
      exists = exists & in_matrix
    return exists


class DapeV2(AroundAdditive):
  """A = S + B + g([S; B]), g a network that sees neighbouring keys too.

  g is two convolutions of odd width k along the keys, 2N -> M -> N channels,
  with LeakyReLU(0.01) between, over entries that are 0 where the query does not
  see the key. An output reaches k - 1 keys to each side, never past the query
  or out of its document. Keys of a document stand side by side in order of
  position: batches of unequal prompts that go on into a cache are padded at the
  left, since padding between a prompt and what follows it would part them.
  Without a bias, over NoPE and RoPE, g has N inputs. Initial values as DAPE's.
  Departure: no last bias (see `dape`). Keys after the query: as the base, and
  the convolutions then reach to both sides.

  Source: Zheng et al. 2024, section 3, arXiv 2410.04798.
  Extrapolates: yes, with a base that does.

  Attributes:
    base: an encoding that adds a bias, or none.
    width: M.
    kernel_size: k, odd.
    edge: "extend" computes the hidden layer beyond the query as if the sequence
      went on, so that a row does not depend on what follows and cached decoding
      equals training. "zero" is the released code: zeros beyond the last key of
      the matrix.
  """

  kernel_size: int = 3
  edge: str = "extend"

  def __post_init__(self):
    if self.kernel_size < 1 or self.kernel_size % 2 == 0:
      raise ConfigError(
          f"kernel_size={self.kernel_size}: must be odd and positive."
      )
    if self.edge not in ("extend", "zero"):
      raise ConfigError(f'edge={self.edge!r}: must be "extend" or "zero".')
    super().__post_init__()

  def _window(self):
    return (self.kernel_size,)

  def _function(self, base):
    return DapeV2Tile(base, self.kernel_size, self.edge)
