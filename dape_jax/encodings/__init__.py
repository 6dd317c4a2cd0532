"""Position encodings, each a pure function of one tile of scores."""

from dape_jax.encodings.alibi import Alibi, alibi_slopes
from dape_jax.encodings.base import (
    AdditiveBias,
    PositionalEncoding,
    ScoreMod,
    Tile,
    TileFunction,
)
from dape_jax.encodings.dape import Dape, DapeV2
from dape_jax.encodings.fire import Fire, fire_bias
from dape_jax.encodings.kerple import KerpleLog, kerple_log_bias
from dape_jax.encodings.nope import Nope
from dape_jax.encodings.registry import make, names, options
from dape_jax.encodings.rope import Rope, rope_frequencies

__all__ = [
    "AdditiveBias",
    "Alibi",
    "Dape",
    "DapeV2",
    "Fire",
    "KerpleLog",
    "Nope",
    "PositionalEncoding",
    "Rope",
    "ScoreMod",
    "Tile",
    "TileFunction",
    "alibi_slopes",
    "fire_bias",
    "kerple_log_bias",
    "make",
    "names",
    "options",
    "rope_frequencies",
]
