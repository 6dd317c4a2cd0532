"""Base classes of encodings that wrap another encoding."""

import dataclasses

import jax

from dape_jax.encodings.base import PositionalEncoding
from dape_jax.encodings.tile import (
    Params,
    ScoreMod,
    Tile,
    TileFunction,
)


@dataclasses.dataclass(frozen=True)
class TileAround(TileFunction):
  """Tile function that wraps the base's tile function, if it has one."""

  base: TileFunction | None

  @property
  def halo(self) -> int:
    return 0 if self.base is None else self.base.halo

  @property
  def scope(self) -> str:
    return "tile" if self.base is None else self.base.scope

  @property
  def in_kernel(self) -> bool:
    return self.base is None or self.base.in_kernel

  @property
  def large_bias(self) -> bool:
    return self.base is not None and self.base.large_bias

  def bias(self, params: Params, tile: Tile, dtype):
    if self.base is None:
      return None
    return self.base.bias(params["base"], tile, dtype)


class Around(PositionalEncoding):
  """Wrapper that delegates to its base; subclasses override one step."""

  base: PositionalEncoding

  @property
  def num_heads(self) -> int:
    return self.base.num_heads

  @property
  def is_absolute(self) -> bool:
    return self.base.is_absolute

  @property
  def key_features(self) -> int:
    return self.base.key_features

  def embed(self, x, positions):
    return self.base.embed(x, positions)

  def rotate(self, query, key, q_positions, kv_positions):
    return self.base.rotate(query, key, q_positions, kv_positions)

  def scale_query(self, query, num_visible):
    return self.base.scale_query(query, num_visible)

  def features(self, x, query, key, *, segment_ids=None, previous=None):
    return self.base.features(
        x, query, key, segment_ids=segment_ids, previous=previous
    )

  def position_limit(self) -> int | None:
    return self.base.position_limit()

  def sink(self) -> jax.Array | None:
    return self.base.sink()

  def score_mod(self) -> ScoreMod | None:
    return self.base.score_mod()


def base_params(score_mod: ScoreMod | None) -> Params:
  """Returns the part of a wrapper's parameters that `TileAround.bias` reads."""
  return {} if score_mod is None else {"base": score_mod.params}
