"""Layers of the decoder: projections, attention, feed-forward, block."""

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from dape_jax import encodings
from dape_jax.attention import append_keys_values, attention
from dape_jax.config import ModelConfig
from dape_jax.encodings.base import PositionalEncoding, ScoreMod


@flax.struct.dataclass
class Context:
  """What every layer gets beside its input.

  Attributes:
    q_positions: [T] or [B, T] int32 of the tokens in hand.
    q_segment_ids: [B, T] int32, or None.
    kv_positions, kv_segment_ids: of the keys: the tokens in hand, or the cache.
    filled: slots of the cache in use, the tokens in hand included; or None.
    score_mod: of the encoding that all layers share; None if each has its own.
  """

  q_positions: jax.Array
  q_segment_ids: jax.Array | None
  kv_positions: jax.Array
  kv_segment_ids: jax.Array | None
  filled: jax.Array | None = None
  score_mod: ScoreMod | None = None


def make_encoding(config: ModelConfig, **linen) -> PositionalEncoding:
  """Returns the config's encoding; `linen` is parent and name."""
  return encodings.make(
      config.encoding,
      num_heads=config.num_heads,
      **config.encoding_options,
      **linen,
  )


def projection_init(config: ModelConfig, is_output: bool):
  """Returns the initialiser of a projection's kernel.

  "dape": N(0, 2 / (5 width)), output projections std 2 / (layers sqrt(width)),
  as DAPE's and GPT-NeoX's released configs. "kerple": N(0, 0.02^2), output
  projections 0.02 / sqrt(2 layers), as GPT-2 and KERPLE's.
  """
  if config.init == "dape":
    if is_output:
      stddev = 2 / (config.num_layers * config.width**0.5)
    else:
      stddev = (2 / (5 * config.width)) ** 0.5
  else:
    stddev = 0.02 / ((2 * config.num_layers) ** 0.5 if is_output else 1)
  return nn.initializers.normal(stddev)


class Einsum(nn.Module):
  """y = einsum(equation, x, kernel) + bias, in the compute dtype.

  Attributes:
    equation: of x and kernel.
    kernel_shape: parameter `kernel`, float32.
    bias_shape: parameter `bias`, float32, or None for no bias.
    kernel_init: of the kernel.
    dtype: of the computation.
    out_dtype: of the result, accumulated in at least it; default `dtype`.
  """

  equation: str
  kernel_shape: tuple[int, ...]
  bias_shape: tuple[int, ...] | None
  kernel_init: nn.initializers.Initializer
  dtype: jnp.dtype
  out_dtype: jnp.dtype | None = None

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    kernel = self.param("kernel", self.kernel_init, self.kernel_shape)
    y = jnp.einsum(
        self.equation,
        x.astype(self.dtype),
        kernel.astype(self.dtype),
        preferred_element_type=self.out_dtype,
    )
    if self.bias_shape is not None:
      bias = self.param("bias", nn.initializers.zeros, self.bias_shape)
      shape = (1,) * (y.ndim - bias.ndim) + bias.shape
      y = y + bias.astype(y.dtype).reshape(shape)
    return y


def layer_norm(config: ModelConfig) -> nn.LayerNorm:
  """Returns LayerNorm with statistics in float32, output in config.dtype."""
  return nn.LayerNorm(epsilon=1e-5, dtype=jnp.dtype(config.dtype))


class Attention(nn.Module):
  """Multi-head attention with any position encoding and an optional cache."""

  config: ModelConfig

  def setup(self):
    config = self.config
    dtype = jnp.dtype(config.dtype)
    head_dim = config.width // config.num_heads

    def heads(num_heads):
      shape = (num_heads, head_dim)
      init = projection_init(config, is_output=False)
      kernel_shape = (config.width, *shape)
      return Einsum("BTD,DNH->BTNH", kernel_shape, shape, init, dtype)

    num_kv_heads = config.num_kv_heads or config.num_heads
    self.query = heads(config.num_heads)
    self.key = heads(num_kv_heads)
    self.value = heads(num_kv_heads)
    self.output = Einsum(
        "BTNH,NHD->BTD",
        (config.num_heads, head_dim, config.width),
        (config.width,),
        projection_init(config, is_output=True),
        dtype,
    )
    if not config.share_encoding:
      self.encoding = make_encoding(config)

  def __call__(
      self,
      x_BxTxD: jax.Array,
      slots: tuple[jax.Array, jax.Array] | None,
      context: Context,
  ) -> tuple[jax.Array, tuple[jax.Array, jax.Array] | None]:
    """Returns ([B, T, D], slots with the new keys and values).

    Args:
      x_BxTxD: normalised input.
      slots: this layer's cached keys and values [B, S, K, H], or None.
      context: positions and documents of queries and keys.
    """
    if self.config.share_encoding:
      # The model holds its parameters; rotating needs none.
      encoding = make_encoding(self.config, parent=None)
      score_mod = context.score_mod
    else:
      encoding = self.encoding
      score_mod = encoding.score_mod()
    query, key = encoding.rotate(
        self.query(x_BxTxD),
        self.key(x_BxTxD),
        context.q_positions,
        context.q_positions,
    )
    value = self.value(x_BxTxD)
    if slots is not None:
      key, value = slots = tuple(
          append_keys_values(old, new, context.filled)
          for old, new in zip(slots, (key, value))
      )
    out_BxTxNxH = attention(
        query,
        key,
        value,
        score_mod,
        q_positions=context.q_positions,
        kv_positions=context.kv_positions,
        q_segment_ids=context.q_segment_ids,
        kv_segment_ids=context.kv_segment_ids,
    )
    return self.output(out_BxTxNxH), slots


class Mlp(nn.Module):
  """Linear(D, F), GELU (tanh form), Linear(F, D)."""

  config: ModelConfig

  def setup(self):
    config = self.config
    width, hidden = config.width, config.mlp_width or 4 * config.width
    dtype = jnp.dtype(config.dtype)
    up_init = projection_init(config, is_output=False)
    down_init = projection_init(config, is_output=True)
    self.up = Einsum("BTD,DF->BTF", (width, hidden), (hidden,), up_init, dtype)
    self.down = Einsum(
        "BTF,FD->BTD", (hidden, width), (width,), down_init, dtype
    )

  def __call__(self, x_BxTxD: jax.Array) -> jax.Array:
    return self.down(nn.gelu(self.up(x_BxTxD)))


class Block(nn.Module):
  """x + Attention(LayerNorm(x)), then x + Mlp(LayerNorm(x))."""

  config: ModelConfig

  def setup(self):
    self.attention_norm = layer_norm(self.config)
    self.attention = Attention(self.config)
    self.mlp_norm = layer_norm(self.config)
    self.mlp = Mlp(self.config)

  def __call__(self, x_BxTxD: jax.Array, slots, context: Context):
    attended, slots = self.attention(
        self.attention_norm(x_BxTxD), slots, context
    )
    x_BxTxD = x_BxTxD + attended
    return x_BxTxD + self.mlp(self.mlp_norm(x_BxTxD)), slots
