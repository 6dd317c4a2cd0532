"""The sum of two encodings."""

import dataclasses

import jax
import jax.numpy as jnp

from dape_jax.encodings.base import PositionalEncoding
from dape_jax.encodings.tile import (
    AdditiveBias,
    Params,
    ScoreMod,
    Tile,
)
from dape_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class SumTile(AdditiveBias):
  """B = B_a + B_b."""

  a: AdditiveBias | None
  b: AdditiveBias | None
  a_key_features: int

  def _parts(self) -> dict[str, AdditiveBias]:
    parts = {"a": self.a, "b": self.b}
    return {name: part for name, part in parts.items() if part is not None}

  @property
  def in_kernel(self) -> bool:
    return all(part.in_kernel for part in self._parts().values())

  @property
  def large_bias(self) -> bool:
    return any(part.large_bias for part in self._parts().values())

  def bias(self, params: Params, tile: Tile, dtype: jnp.dtype):
    of_queries = dict(zip("ab", tile.q_features or (None, None)))
    of_keys = {"a": None, "b": None}
    if tile.kv_features is not None:
      split = jnp.split(tile.kv_features, [self.a_key_features], axis=-1)
      of_keys = dict(zip("ab", split))
    return sum(
        part.bias(
            params[name],
            tile.replace(
                q_features=of_queries[name], kv_features=of_keys[name]
            ),
            dtype,
        )
        for name, part in self._parts().items()
    )


class Sum(PositionalEncoding):
  """A = S + B_a + B_b, with queries and keys rotated by a and then by b.

  For example, `Sum(Rope(num_heads=12), KerpleLog(num_heads=12))`.

  Source: see a and b.
  Extrapolates: no claim.

  Attributes:
    a, b: encodings that rotate, embed or add a bias.
  """

  a: PositionalEncoding
  b: PositionalEncoding

  def __post_init__(self):
    if self.a.num_heads != self.b.num_heads:
      raise ConfigError(
          f"a has {self.a.num_heads} heads and b {self.b.num_heads}: these"
          " must be equal."
      )
    super().__post_init__()

  @property
  def num_heads(self) -> int:
    return self.a.num_heads

  @property
  def is_absolute(self) -> bool:
    return self.a.is_absolute or self.b.is_absolute

  @property
  def key_features(self) -> int:
    return self.a.key_features + self.b.key_features

  def embed(self, x, positions):
    return self.b.embed(self.a.embed(x, positions), positions)

  def rotate(self, query, key, q_positions, kv_positions):
    query, key = self.a.rotate(query, key, q_positions, kv_positions)
    return self.b.rotate(query, key, q_positions, kv_positions)

  def scale_query(self, query, num_visible):
    query = self.a.scale_query(query, num_visible)
    return self.b.scale_query(query, num_visible)

  def features(self, x, query, key, *, segment_ids=None, previous=None):
    parts = (None, None)
    if previous is not None:
      parts = jnp.split(previous, [self.a.key_features], axis=-1)
    of_queries, of_keys = zip(
        *(
            encoding.features(
                x, query, key, segment_ids=segment_ids, previous=part
            )
            for encoding, part in zip((self.a, self.b), parts)
        )
    )
    of_keys = [x for x in of_keys if x is not None]
    if not jax.tree.leaves((of_queries, of_keys)):
      return None, None
    return of_queries, jnp.concatenate(of_keys, -1) if of_keys else None

  def position_limit(self):
    limits = [self.a.position_limit(), self.b.position_limit()]
    return min((x for x in limits if x is not None), default=None)

  def sink(self):
    sinks = [s for s in (self.a.sink(), self.b.sink()) if s is not None]
    if len(sinks) == 2:
      raise ConfigError("a and b both have a sink; a sum can have only one.")
    return sinks[0] if sinks else None

  def score_mod(self) -> ScoreMod | None:
    parts = {"a": self.a.score_mod(), "b": self.b.score_mod()}
    for name, part in parts.items():
      if part is not None and not isinstance(part.function, AdditiveBias):
        raise ConfigError(
            f"{name}: {type(getattr(self, name)).__name__} does more than add"
            " a bias to the scores, so it cannot be summed."
        )
    functions = [part and part.function for part in parts.values()]
    if functions == [None, None]:
      return None
    params = {name: part.params for name, part in parts.items() if part}
    return ScoreMod(params, SumTile(*functions, self.a.key_features))
