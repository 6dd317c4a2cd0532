"""Pictures of what was learned: `python -m dape_jax.plots --help`."""

from dape_jax.plots.bias import draw_bias
from dape_jax.plots.effective_length import draw_lengths, lengths_of_run
from dape_jax.plots.rows import Rows, rows_of_layers
from dape_jax.plots.score_map import draw_map

__all__ = [
    "Rows",
    "draw_bias",
    "draw_lengths",
    "draw_map",
    "lengths_of_run",
    "rows_of_layers",
]
