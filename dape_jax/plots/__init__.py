"""Plots of learned position encodings: `python -m dape_jax.plots --help`."""

from dape_jax.plots.effective_length import draw_lengths, lengths_of_run
from dape_jax.plots.figures import draw_bias, draw_map
from dape_jax.plots.rows import Rows, rows_of_layers

__all__ = [
    "Rows",
    "draw_bias",
    "draw_lengths",
    "draw_map",
    "lengths_of_run",
    "rows_of_layers",
]
