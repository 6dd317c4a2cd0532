"""Attention with a score modifier, and its key/value cache."""

from dape_jax.attention.api import attention
from dape_jax.attention.cache import (
    Cache,
    append_keys_values,
    append_tokens,
    empty_cache,
    grow_cache,
)

__all__ = [
    "Cache",
    "append_keys_values",
    "append_tokens",
    "attention",
    "empty_cache",
    "grow_cache",
]
