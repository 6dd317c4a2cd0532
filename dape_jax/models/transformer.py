"""Transformer decoder or encoder with any position encoding."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dape_jax import encodings
from dape_jax.array_typing import Logits, Positions, SegmentIds, Tokens
from dape_jax.attention.cache import (
    Cache,
    append_tokens,
    empty_cache,
    overfilled,
)
from dape_jax.config import ModelConfig
from dape_jax.models.layer_encodings import is_shared, make_encoding
from dape_jax.models.layers import Block, Context
from dape_jax.models.projections import (
    Einsum,
    layer_norm,
    placed,
    projection_init,
)

REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


def block_class(config: ModelConfig) -> type[nn.Module]:
  """Returns Block, wrapped in the rematerialization policy of the config."""
  if config.remat == "none":
    return Block
  policy = REMAT_POLICIES[config.remat]
  return nn.remat(Block, policy=policy, prevent_cse=False)


class LayerGroup(nn.Module):
  """Consecutive blocks with different encodings or windows."""

  config: ModelConfig

  def setup(self):
    block = block_class(self.config)
    self.blocks = [block(self.config, *k) for k in self.config.layer_kinds]

  def __call__(self, carry, group, context: Context):
    """Applies the blocks of one group; returns what `Block` returns."""
    for i, block in enumerate(self.blocks):
      layer = None if group is None else group * len(self.blocks) + i
      carry, _ = block(carry, layer, context)
    return carry, None


class Transformer(nn.Module):
  """Pre-LayerNorm decoder with GELU, biases and an untied head without bias.

  The defaults give the models of the KERPLE and DAPE papers: at width 768 with
  12 layers, 12 heads and a vocabulary of 50,304, the model has 162,322,944
  parameters plus those of the encoding. Other settings give the encoder of
  Ruoss et al. 2023 (arXiv 2305.16843; see configs/che.py), except for the
  biases of the attention projections.

  Parameters are float32, activations `config.dtype`, logits float32. Layers run
  under `nn.scan`, so their parameters are stacked on axis 0 under "layers". If
  layers alternate between n kinds, "layers/blocks_k" holds those of kind k.

  Attributes:
    config: model config.
  """

  config: ModelConfig

  def setup(self):
    config = self.config
    init = projection_init(config, config.width)
    embedding_init = init
    if config.init == "ruoss":
      # The source uses std 0.02 and scales by sqrt(width) in the forward pass.
      std = 0.02 * config.width**0.5
      embedding_init = nn.initializers.truncated_normal(std)
    shape = (config.vocab_size, config.width)
    self.embedding = self.param("embedding", embedding_init, shape)
    kinds = config.layer_kinds
    group = block_class(config) if len(kinds) == 1 else LayerGroup
    self.layers = nn.scan(
        group,
        variable_axes={"params": 0, "intermediates": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(0, nn.broadcast),
        length=config.num_layers // len(kinds),
    )(config, *(kinds[0] if len(kinds) == 1 else ()))
    if is_shared(config):
      self.encoding = make_encoding(config, config.encodings[0])
    if config.norm == "pre":
      self.final_norm = layer_norm(config)
    self.head = Einsum(
        "BTD,DV->BTV",
        (config.width, config.num_outputs or config.vocab_size),
        None,
        init,
        jnp.dtype(config.dtype),
        out_dtype=jnp.float32,
    )

  def __call__(
      self,
      tokens: Tokens,
      segment_ids: SegmentIds | None = None,
      positions: Positions | None = None,
      cache: Cache | None = None,
  ) -> Logits | tuple[Logits, Cache]:
    """Returns logits [B, T, V], and the updated cache if one is given.

    Args:
      tokens: [B, T] int32. An id outside the vocabulary makes the logits of
        its row NaN, at least from that token on.
      segment_ids: [B, T] int32. Tokens attend within their segment; id 0 is
        padding. Default: one document per row. Left-pad prompts that continue
        from a cache (see `encodings.DapeV2`).
      positions: [T] or [B, T] int32, position within the document. Default: 0,
        1, ..., or filled, filled + 1, ... of the cache.
      cache: cache from `empty_cache` or from the previous call.

    Raises:
      ValueError: the cache is too small (under jit all logits are NaN instead),
        or an encoder is given a cache.
    """
    if cache is not None and not self.config.causal:
      raise ValueError(
          "an encoder has no cache; pass the whole text in one call."
      )
    if positions is None:
      # NumPy, so that positions beyond a learned table fail at trace time.
      positions = np.arange(tokens.shape[1], dtype=np.int32)
      if cache is not None:
        positions = positions + cache.filled
    if segment_ids is not None:
      # Padding must not exceed the limit of a table.
      positions = jnp.broadcast_to(positions, tokens.shape)
      positions = jnp.where(segment_ids == 0, 0, positions)
    if cache is None:
      context = Context(positions, segment_ids, positions, segment_ids)
    else:
      if segment_ids is None:
        segment_ids = jnp.ones_like(tokens)
      cache = append_tokens(
          cache, jnp.broadcast_to(positions, tokens.shape), segment_ids
      )
      context = Context(
          positions, segment_ids, cache.positions, cache.segment_ids
      )
    dtype = jnp.dtype(self.config.dtype)
    # Negative ids would otherwise wrap around; out of range yields NaN.
    tokens = jnp.where(tokens < 0, self.config.vocab_size, tokens)
    x_BxTxD = (
        jnp.asarray(self.embedding, dtype)  # NumPy after a restore.
        .at[tokens]
        .get(mode="fill", fill_value=jnp.nan)
    )
    if is_shared(self.config):
      x_BxTxD = self.encoding.embed(x_BxTxD, positions)
      if self.is_initializing():
        self._initialize_encoding(x_BxTxD)
      params = self.encoding.variables.get("params", {})
      context = context.replace(encoding_params=params)
    num_groups = self.config.num_layers // len(self.config.layer_kinds)
    groups = None if cache is None else jnp.arange(num_groups)
    (x_BxTxD, cache), _ = self.layers((placed(x_BxTxD), cache), groups, context)
    if self.config.norm == "pre":
      x_BxTxD = self.final_norm(x_BxTxD)
    logits_BxTxV = placed(self.head(x_BxTxD))
    if cache is None:
      return logits_BxTxV
    return jnp.where(overfilled(cache), jnp.nan, logits_BxTxV), cache

  def _initialize_encoding(self, x_BxTxD):
    """Creates those parameters of the shared encoding that only layers use."""
    config = self.config
    shape = (1, 1, config.num_heads, config.width // config.num_heads)
    heads = jnp.zeros(shape, x_BxTxD.dtype)
    self.encoding.features(x_BxTxD[:1, :1], heads, heads)

  @nn.nowrap
  def at_length(self, length: int) -> "Transformer":
    """Returns the model for texts of up to `length` tokens.

    The result differs from `self` only if an encoding has the option "length"
    (dynamic NTK), on which all keys of a cache must agree.
    """
    config = self.config
    if not any("length" in encodings.options(n) for n in config.encodings):
      return self
    options = dict(config.encoding_options)
    options["length"] = max(length, options.get("length", 0))
    return Transformer(dataclasses.replace(config, encoding_options=options))

  @nn.nowrap
  def empty_cache(self, batch_size: int, capacity: int) -> Cache:
    """Returns a cache for `batch_size` rows of up to `capacity` tokens."""
    config = self.config
    return empty_cache(
        config.num_layers,
        batch_size,
        capacity,
        config.num_kv_heads or config.num_heads,
        config.width // config.num_heads,
        jnp.dtype(config.dtype),
        max(
            make_encoding(config, name, parent=None).key_features
            for name in config.encodings
        ),
    )
