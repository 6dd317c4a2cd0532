"""Modifiers of any encoding: length scaling, attention sink, soft cap."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from dape_jax.array_typing import TileScores
from dape_jax.encodings.around import Around, TileAround, base_params
from dape_jax.encodings.tile import (
    Params,
    ScoreMod,
    Tile,
)
from dape_jax.errors import ConfigError


def scaled_query(
    query: jax.Array, num_visible: jax.Array, factors: jax.Array
) -> jax.Array:
  """Returns query [B, T, N, H] times factors, in query's dtype.

  Args:
    query: queries.
    num_visible: [T] or [B, T], number of visible keys; 0 for padding.
    factors: [T, N or 1] or [B, T, N or 1].
  """
  # Padding may hold NaN, which would reach the gradient of the factors.
  kept = num_visible[..., None] > 0
  if num_visible.ndim == 1:
    factors, kept = factors[None], kept[None]
  query = jnp.where(kept[..., None], query, 0)
  scaled = query.astype(factors.dtype) * factors[..., None]
  return scaled.astype(query.dtype)


def _log(num_visible: jax.Array, query: jax.Array) -> jax.Array:
  dtype = jnp.promote_types(query.dtype, jnp.float32)
  return jnp.log(jnp.maximum(num_visible, 1).astype(dtype))[..., None]


class SSMax(Around):
  """A = s_h log(n_i) S + B for n_i keys visible to query i.

  Scalable softmax keeps the weights equally sharp for any number of keys. s_h
  is learned per head, 0.43 at init (as in the paper's figure 1). It scales the
  scores S, not the base's bias.

  Source: Nakanishi 2025, arXiv 2501.19399, equation 2.
  Extrapolates: with RoPE, better than softmax.

  Attributes:
    base: any encoding.
  """

  def setup(self):
    init = jax.nn.initializers.constant(0.43)
    self.s = self.param("s", init, (self.num_heads,))

  def scale_query(self, query, num_visible):
    query = self.base.scale_query(query, num_visible)
    logs = _log(num_visible, query)
    s = self.s.astype(logs.dtype).reshape((1,) * num_visible.ndim + (-1,))
    return scaled_query(query, num_visible, logs * s)


class LogN(Around):
  """A = max(1, log(n_i) / log(L)) S + B for n_i keys visible to query i.

  No parameters; no effect up to the training length L. n_i is i + 1 if all keys
  up to the query are visible, as in the sources; in a window it is at most the
  window size.

  Source: Su 2021 and Chiang and Cholak 2022, arXiv 2202.12172, section 5.3; the
  form with max is that of Bai et al. 2023 (Qwen), arXiv 2309.16609.
  Extrapolates: further than the base, if the base does.

  Attributes:
    base: any encoding.
    train_length: L, in tokens.
  """

  train_length: int = 512

  def __post_init__(self):
    if self.train_length < 2:
      raise ConfigError(
          f"train_length={self.train_length}: must be 2 or more: scores are"
          " divided by its logarithm."
      )
    super().__post_init__()

  def scale_query(self, query, num_visible):
    query = self.base.scale_query(query, num_visible)
    logs = _log(num_visible, query)
    factors = jnp.maximum(1, logs / math.log(self.train_length))
    return scaled_query(query, num_visible, factors)


class LearnedSink(Around):
  """Softmax over the keys and one extra logit per head, which has no value.

  This lets a head attend to nothing. The logit is learned, 0 at init.

  Source: Miller 2023 (the fixed logit 0); OpenAI 2025, arXiv 2508.10925,
  section 2.2 (learned).
  Extrapolates: no claim.

  Attributes:
    base: any encoding.
  """

  def setup(self):
    self.logit = self.param(
        "logit", jax.nn.initializers.zeros, (self.num_heads,)
    )

  def sink(self):
    return self.logit


@dataclasses.dataclass(frozen=True)
class SoftCapTile(TileAround):
  """cap tanh(A / cap)."""

  cap: float

  def __call__(
      self, params: Params, scores: TileScores, tile: Tile
  ) -> TileScores:
    if self.base is not None:
      scores = self.base(params["base"], scores, tile)
    return self.cap * jnp.tanh(scores / self.cap)


class SoftCap(Around):
  """A' = cap tanh(A / cap) for the base's scores A, including its bias.

  Source: Gemma Team 2024 (Gemma 2), arXiv 2408.00118, section 2.
  Extrapolates: no claim.

  Attributes:
    base: any encoding.
    cap: bound of the logits.
  """

  cap: float = 50.0

  def __post_init__(self):
    if self.cap <= 0:
      raise ConfigError(f"cap={self.cap}: must be above 0.")
    super().__post_init__()

  def score_mod(self) -> ScoreMod:
    base = self.base.score_mod()
    function = SoftCapTile(None if base is None else base.function, self.cap)
    return ScoreMod(base_params(base), function)
