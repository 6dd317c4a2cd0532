"""Attention with score modifiers, and the key/value cache."""

from dape_jax.attention.api import attention
from dape_jax.attention.attend import (
    attend,
    encoded_tokens,
    num_visible_keys,
)
from dape_jax.attention.cache import (
    Cache,
    append_to_slots,
    append_tokens,
    empty_cache,
    grow_cache,
    last_slot,
    slots_of_layer,
)

__all__ = [
    "Cache",
    "append_to_slots",
    "append_tokens",
    "attend",
    "attention",
    "empty_cache",
    "encoded_tokens",
    "grow_cache",
    "last_slot",
    "num_visible_keys",
    "slots_of_layer",
]
