"""Results of an evaluation: file, tables, pictures and a page with all of them.

`results_file` documents what results are. `write` makes the folder of a report,
`table` the text for a terminal; `accuracy_figure` and `heat_map_figure` draw
results of other kinds in the same style.
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
