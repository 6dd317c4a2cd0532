"""Attention with pluggable, data-adaptive position encodings in JAX."""

__version__ = "0.1.0"

from dape_jax import encodings
from dape_jax.attention import attend, attention
from dape_jax.encodings import (
    Alibi,
    Dape,
    DapeV2,
    Fire,
    KerpleLog,
    Nope,
    PositionalEncoding,
    Rope,
    ScoreMod,
    Sum,
    Tile,
    TileFunction,
)
from dape_jax.errors import ConfigError
from dape_jax.generate import generate

__all__ = [
    "Alibi",
    "ConfigError",
    "Dape",
    "DapeV2",
    "Fire",
    "KerpleLog",
    "Nope",
    "PositionalEncoding",
    "Rope",
    "ScoreMod",
    "Sum",
    "Tile",
    "TileFunction",
    "__version__",
    "attend",
    "attention",
    "encodings",
    "generate",
]
