"""Transformer layers: attention, MLP and block."""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from dape_jax.attention import (
    Cache,
    attention,
    encoded_tokens,
    last_slot,
    num_visible_keys,
    slots_of_layer,
)
from dape_jax.config import ModelConfig
from dape_jax.models.layer_encodings import is_shared, make_encoding
from dape_jax.models.projections import (
    Einsum,
    layer_norm,
    placed,
    projection_init,
)


@flax.struct.dataclass
class Context:
  """Inputs common to all layers.

  Attributes:
    q_positions: [T] or [B, T] int32, positions of the input tokens.
    q_segment_ids: [B, T] int32, or None.
    kv_positions, kv_segment_ids: the same for the keys, which are those of the
      input tokens or of the cache.
    encoding_params: parameters of a shared encoding; None if each layer has its
      own.
  """

  q_positions: jax.Array
  q_segment_ids: jax.Array | None
  kv_positions: jax.Array
  kv_segment_ids: jax.Array | None
  encoding_params: Any = None


class Attention(nn.Module):
  """Multi-head attention with any position encoding and an optional cache.

  Attributes:
    config: model config.
    encoding_name: registry name of this layer's encoding.
    window: sliding window in tokens; 0 disables it.
  """

  config: ModelConfig
  encoding_name: str
  window: int = 0

  def setup(self):
    config = self.config
    dtype = jnp.dtype(config.dtype)
    head_dim = config.width // config.num_heads

    def heads(num_heads):
      shape = (num_heads, head_dim)
      init = projection_init(config, config.width)
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
        projection_init(config, config.width, is_output=True),
        dtype,
    )
    if not is_shared(config):
      self.encoding = make_encoding(config, self.encoding_name)

  def __call__(
      self,
      x_BxTxD: jax.Array,
      cache: Cache | None,
      layer: jax.Array | None,
      context: Context,
  ) -> tuple[jax.Array, Cache | None]:
    """Returns [B, T, D] and the cache with this layer's new keys and values.

    Args:
      x_BxTxD: normalized input.
      cache: cache after `append_tokens` of the input tokens, or None.
      layer: index of this layer in the cache, int32 scalar, or None.
      context: positions and segment ids of queries and keys.
    """
    if context.encoding_params is None:
      encoding = self.encoding
    else:
      encoding = make_encoding(self.config, self.encoding_name, parent=None)
      encoding = encoding.bind({"params": context.encoding_params})
    query, key, value = (
        project(x_BxTxD) for project in (self.query, self.key, self.value)
    )
    previous = None
    if cache is not None and encoding.key_features:
      previous = last_slot(
          slots_of_layer(cache.features, layer)[..., : encoding.key_features],
          cache.filled,
          num_new=x_BxTxD.shape[1],
      )
    window = self.window or None
    num_visible = num_visible_keys(
        q_positions=context.q_positions,
        kv_positions=context.kv_positions,
        q_segment_ids=context.q_segment_ids,
        kv_segment_ids=context.kv_segment_ids,
        causal=self.config.causal,
        window=window,
    )
    query, key, q_features, kv_features = encoded_tokens(
        encoding,
        x_BxTxD,
        query,
        key,
        context.q_positions,
        num_visible,
        context.q_segment_ids,
        previous,
    )
    if cache is not None:
      cache = cache.append_to_layer(layer, key, value, kv_features)
      heads = (len(key), cache.capacity, *key.shape[2:])
      key, value = (
          slots_of_layer(slots, layer).reshape(heads)
          for slots in (cache.keys, cache.values)
      )
      if encoding.key_features:
        kv_features = slots_of_layer(cache.features, layer)
        kv_features = kv_features[..., : encoding.key_features]
    out_BxTxNxH = attention(
        query,
        key,
        value,
        encoding.score_mod(),
        q_positions=context.q_positions,
        kv_positions=context.kv_positions,
        q_segment_ids=context.q_segment_ids,
        kv_segment_ids=context.kv_segment_ids,
        q_features=q_features,
        kv_features=kv_features,
        causal=self.config.causal,
        window=window,
        sink=encoding.sink(),
    )
    return self.output(out_BxTxNxH), cache


class Mlp(nn.Module):
  """Linear(D, F), config.activation, Linear(F, D)."""

  config: ModelConfig

  def setup(self):
    config = self.config
    width, hidden = config.width, config.mlp_width or 4 * config.width
    dtype = jnp.dtype(config.dtype)
    up_init = projection_init(config, width)
    down_init = projection_init(config, hidden, is_output=True)
    self.up = Einsum("BTD,DF->BTF", (width, hidden), (hidden,), up_init, dtype)
    self.down = Einsum(
        "BTF,FD->BTD", (hidden, width), (width,), down_init, dtype
    )

  def __call__(self, x_BxTxD: jax.Array) -> jax.Array:
    activation = {"gelu": nn.gelu, "relu": nn.relu}[self.config.activation]
    return self.down(activation(placed(self.up(x_BxTxD))))


class Block(nn.Module):
  """x + Attention(LayerNorm(x)), then x + Mlp(LayerNorm(x)).

  With config.norm "post": LayerNorm(x + Attention(x)), then
  LayerNorm(x + Mlp(x)). Dropout applies to each residual branch if the caller
  passes a "dropout" key.

  Attributes: see `Attention`.
  """

  config: ModelConfig
  encoding_name: str
  window: int = 0

  def setup(self):
    self.attention_norm = layer_norm(self.config)
    self.attention = Attention(self.config, self.encoding_name, self.window)
    self.mlp_norm = layer_norm(self.config)
    self.mlp = Mlp(self.config)
    self.dropout = nn.Dropout(self.config.dropout)

  def __call__(self, carry, layer, context: Context):
    """Returns (carry, None) with carry = (x [B, T, D], the cache).

    Args:
      carry: x and the cache from the previous layer; the cache may be None.
      layer, context: see `Attention`.
    """
    x_BxTxD, cache = carry

    def dropped(x_BxTxD):
      return self.dropout(x_BxTxD, deterministic=not self.has_rng("dropout"))

    if self.config.norm == "post":
      attended, cache = self.attention(x_BxTxD, cache, layer, context)
      x_BxTxD = placed(self.attention_norm(x_BxTxD + dropped(attended)))
      x_BxTxD = self.mlp_norm(x_BxTxD + dropped(self.mlp(x_BxTxD)))
      return (placed(x_BxTxD), cache), None
    attended, cache = self.attention(
        self.attention_norm(x_BxTxD), cache, layer, context
    )
    x_BxTxD = placed(x_BxTxD + dropped(attended))
    x_BxTxD = x_BxTxD + dropped(self.mlp(self.mlp_norm(x_BxTxD)))
    return (placed(x_BxTxD), cache), None
