"""Decoder-only language model with any position encoding."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from dape_jax.array_typing import Logits, Positions, SegmentIds, Tokens
from dape_jax.attention.cache import (
    Cache,
    append_tokens,
    empty_cache,
    overfilled,
)
from dape_jax.config import ModelConfig
from dape_jax.models.layers import (
    Block,
    Context,
    Einsum,
    layer_norm,
    make_encoding,
    projection_init,
)

REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


class Transformer(nn.Module):
  """Pre-LayerNorm decoder, GELU, biases everywhere, untied head without bias.

  The models of the KERPLE and DAPE papers: with width 768, 12 layers, 12 heads
  and a vocabulary of 50,304 it has 162,322,944 parameters and the encoding's.
  Parameters are float32, activations `config.dtype`, logits float32. Layers run
  under `nn.scan`: their parameters are stacked on axis 0 under "layers".
  """

  config: ModelConfig

  def setup(self):
    config = self.config
    init = projection_init(config, is_output=False)
    shape = (config.vocab_size, config.width)
    self.embedding = self.param("embedding", init, shape)
    block = Block
    if config.remat != "none":
      block = nn.remat(
          Block, policy=REMAT_POLICIES[config.remat], prevent_cse=False
      )
    self.layers = nn.scan(
        block,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        in_axes=(0, nn.broadcast),
        length=config.num_layers,
    )(config)
    if config.share_encoding:
      self.encoding = make_encoding(config)
    self.final_norm = layer_norm(config)
    self.head = Einsum(
        "BTD,DV->BTV",
        (config.width, config.vocab_size),
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
    """Returns logits [B, T, V], with a cache also the cache with T more slots.

    Args:
      tokens: [B, T] int32; a row with an id outside the vocabulary has NaN logits.
      segment_ids: [B, T] int32; a token attends within its id, and id 0 is
        padding. Default: one document a row. Prompts that a cache goes on with
        are padded at the left (see `encodings.DapeV2`).
      positions: [T] or [B, T] int32, position within the document. Default: 0,
        1, ..., or the cache's filled, filled + 1, ...
      cache: from `empty_cache`, or the last call's. Appending beyond its
        capacity is a ValueError, and under jit all logits are NaN.
    """
    if positions is None:
      positions = jnp.arange(tokens.shape[1], dtype=jnp.int32)
      if cache is not None:
        positions = positions + cache.filled
    slots = None
    if cache is None:
      context = Context(positions, segment_ids, positions, segment_ids)
    else:
      if segment_ids is None:
        segment_ids = jnp.ones_like(tokens)
      cache = append_tokens(
          cache, jnp.broadcast_to(positions, tokens.shape), segment_ids
      )
      slots = (cache.keys, cache.values)
      context = Context(
          positions,
          segment_ids,
          cache.positions,
          cache.segment_ids,
          cache.filled,
      )
    if self.config.share_encoding:
      context = context.replace(score_mod=self.encoding.score_mod())

    dtype = jnp.dtype(self.config.dtype)
    # An id outside the vocabulary is NaN, not the nearest row.
    tokens = jnp.where(tokens < 0, self.config.vocab_size, tokens)
    x_BxTxD = (
        self.embedding.astype(dtype)
        .at[tokens]
        .get(mode="fill", fill_value=jnp.nan)
    )
    x_BxTxD, slots = self.layers(x_BxTxD, slots, context)
    logits_BxTxV = self.head(self.final_norm(x_BxTxD))
    if cache is None:
      return logits_BxTxV
    logits_BxTxV = jnp.where(overfilled(cache), jnp.nan, logits_BxTxV)
    return logits_BxTxV, cache.replace(keys=slots[0], values=slots[1])

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
    )
