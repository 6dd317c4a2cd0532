"""Evaluation results: results file, tables, figures and an HTML report.

`results_file` documents the results. `write` writes a report's folder and `table`
returns text for a terminal. `accuracy_figure` and `heat_map_figure` draw other
results in the same style.
"""

from dape_jax.evaluation.report.figures import (
    accuracy_figure,
    heat_map_figure,
    new_figure,
)
from dape_jax.evaluation.report.folder import write
from dape_jax.evaluation.report.results_file import (
    FORMAT,
    VERSION,
    make_folder,
    read_json,
    write_json,
)
from dape_jax.evaluation.report.subjects import describe
from dape_jax.evaluation.report.text import table

__all__ = [
    "FORMAT",
    "VERSION",
    "accuracy_figure",
    "describe",
    "heat_map_figure",
    "make_folder",
    "new_figure",
    "read_json",
    "table",
    "write",
    "write_json",
]
