"""DAPE V2 (arXiv 2410.04798) around any base: attention maps as images.

Like DAPE (see `dape`), with a network that also sees neighboring keys.
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
    """Returns the mask of hidden columns that are not padding, [t, s + 2 pad].

    The hidden layer is zero-padded left of the document (or window). Right of
    the query it is computed from inputs of 0.
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
  """A = S + B + g([S; B]), g a network that also sees neighboring keys.

  g is two convolutions of odd width k along the keys, 2N -> M -> N channels,
  with LeakyReLU(0.01) in between. Inputs are 0 where the key is not visible to
  the query. An output depends on up to k - 1 keys on each side, never past the
  query or outside its document. The keys of a document must be contiguous and
  in order of position: left-pad prompts of unequal length that continue from a
  cache, since padding between a prompt and its continuation would separate
  them. NoPE and RoPE have no bias, so g then has N inputs. Parameters are
  initialized as in DAPE. Departure: no output bias (see `dape`). Keys after the
  query are treated as in the base; the convolutions then extend to both sides.

  Source: Zheng et al. 2024, section 3, arXiv 2410.04798.
  Extrapolates: yes, if the base does.

  Attributes:
    base: an encoding that adds a bias or leaves the scores unchanged.
    width: M.
    kernel_size: k, odd.
    edge: "extend" computes the hidden layer beyond the query as if the sequence
      continued, so that a row does not depend on later tokens and cached
      decoding equals training. "zero" follows the released code: zeros beyond
      the last key of the matrix.
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
