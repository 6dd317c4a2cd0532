"""DAPE (arXiv 2405.14722) and DAPE V2 (arXiv 2410.04798) around any base.

Both add to the scores S and the base's bias B a small network of both that
mixes all heads. The network's last bias is left out: it adds one number to a
whole row, which softmax cancels, so its exact gradient is 0 and Adam would
turn rounding noise into full-size steps.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from dape_jax.array_typing import TileScores
from dape_jax.encodings.base import (
    Params,
    PositionalEncoding,
    ScoreMod,
    Tile,
    TileFunction,
    symmetric_uniform,
)
from dape_jax.encodings.pairwise import (
    leaky_relu,
    pairwise_convolve,
    pairwise_linear,
    per_channel,
    per_head,
)
from dape_jax.errors import ConfigError

NEGATIVE_SLOPE = 0.01


@dataclasses.dataclass(frozen=True)
class _TileAroundBase(TileFunction):
  """The static bias B is the base's; over NoPE and RoPE there is none."""

  base: TileFunction | None

  @property
  def in_kernel(self) -> bool:
    return self.base is None or self.base.in_kernel

  @property
  def large_bias(self) -> bool:
    return self.base is not None and self.base.large_bias

  def bias(self, params: Params, tile: Tile, dtype: jnp.dtype):
    if self.base is None:
      return None
    return self.base.bias(params["base"], tile, dtype)


@dataclasses.dataclass(frozen=True)
class DapeTile(_TileAroundBase):
  """A = S + B + f([S; B]), f a two-layer network over heads at each (i, j)."""

  def __call__(
      self, params: Params, scores: TileScores, tile: Tile
  ) -> TileScores:
    dtype = scores.dtype
    hidden_kernel, hidden_bias, output_kernel = (
        params[name].astype(dtype)
        for name in ("hidden_kernel", "hidden_bias", "output_kernel")
    )
    linear = functools.partial(
        pairwise_linear,
        operand_dtype=tile.operand_dtype,
        split=self.large_bias,
    )
    bias = self.bias(params, tile, dtype)
    # Channels of flat pairs throughout: in a kernel each change of shape moves
    # every number.
    inputs = scores.reshape(len(scores), -1)
    if bias is not None:
      bias = bias.reshape(len(bias), -1)
      inputs = jnp.concatenate([inputs, bias])
    hidden = linear(inputs, hidden_kernel) + per_channel(hidden_bias)
    added = linear(leaky_relu(hidden, NEGATIVE_SLOPE), output_kernel)
    if bias is not None:
      added = added + bias
    return scores + added.reshape(scores.shape)


@dataclasses.dataclass(frozen=True)
class DapeV2Tile(_TileAroundBase):
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


class _AroundBase(PositionalEncoding):
  """What Dape and DapeV2 share: the base and its channels."""

  base: PositionalEncoding
  width: int = 32

  def __post_init__(self):
    if self.width < 1:
      raise ConfigError(f"width={self.width}: must be 1 or more.")
    if isinstance(self.base, _AroundBase):
      raise ConfigError(
          f"base={type(self.base).__name__}: DAPE goes around an encoding with"
          " a static bias or none, not around another DAPE."
      )
    super().__post_init__()

  @property
  def num_heads(self) -> int:
    return self.base.num_heads

  def rotate(self, query, key, q_positions, kv_positions):
    return self.base.rotate(query, key, q_positions, kv_positions)

  def _window(self) -> tuple[int, ...]:
    """Returns the leading axes of the kernels."""
    return ()

  def _function(self, base: TileFunction | None) -> TileFunction:
    raise NotImplementedError

  def setup(self):
    window = self._window()
    size = math.prod(window)
    channels = self.num_heads
    if self.base.score_mod() is not None:
      channels *= 2
    hidden = symmetric_uniform(channels * size)
    output = symmetric_uniform(self.width * size)
    self.hidden_kernel = self.param(
        "hidden_kernel", hidden, (*window, channels, self.width)
    )
    self.hidden_bias = self.param("hidden_bias", hidden, (self.width,))
    self.output_kernel = self.param(
        "output_kernel", output, (*window, self.width, self.num_heads)
    )

  def score_mod(self) -> ScoreMod:
    params = {
        "hidden_kernel": self.hidden_kernel,
        "hidden_bias": self.hidden_bias,
        "output_kernel": self.output_kernel,
    }
    base = self.base.score_mod()
    if base is None:
      return ScoreMod(params, self._function(None))
    params["base"] = base.params
    return ScoreMod(params, self._function(base.function))


class Dape(_AroundBase):
  """A = S + B + f([S; B]) (Zheng et al. 2024, arXiv 2405.14722, equation 4).

  f acts at every (i, j) on the numbers of all heads: Linear(2N, M),
  LeakyReLU(0.01), Linear(M, N); over NoPE and RoPE there is no B and f has N
  inputs. Initial values U(-1/sqrt(fan_in), 1/sqrt(fan_in)), so f is not zero at
  the start. Departure: no last bias (see the module's docstring).

  Attributes:
    base: any other encoding; `Dape(KerpleLog(num_heads=12))`.
    width: M.
  """

  def _function(self, base):
    return DapeTile(base)


class DapeV2(_AroundBase):
  """A = S + B + g([S; B]) (Zheng et al. 2024, arXiv 2410.04798).

  g is two convolutions of odd width k along the keys, 2N -> M -> N channels,
  with LeakyReLU(0.01) between, over entries that are 0 where the query does not
  see the key. An output reaches k - 1 keys to each side, never past the query
  or out of its document. Keys of a document stand side by side in order of
  position: batches of unequal prompts that go on into a cache are padded at the
  left, since padding between a prompt and what follows it would part them.
  Departure: no last bias (see the module's docstring).

  Attributes:
    base: any other encoding.
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
