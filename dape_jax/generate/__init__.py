"""Text that a model writes: `python -m dape_jax.generate --help`."""

from dape_jax.models.sampler import generate

__all__ = ["generate"]
