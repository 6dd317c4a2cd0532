"""Models built on dape_jax.attention."""

from dape_jax.models.transformer import Transformer

__all__ = ["Transformer"]
