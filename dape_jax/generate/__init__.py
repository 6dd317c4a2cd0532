"""Text generation: `python -m dape_jax.generate --help`."""

from dape_jax.generate.sampler import generate

__all__ = ["generate"]
