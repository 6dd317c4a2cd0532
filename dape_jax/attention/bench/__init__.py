"""Measures attention: `python -m dape_jax.attention.bench --help`."""
