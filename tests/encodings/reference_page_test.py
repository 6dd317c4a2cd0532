"""docs/encodings.md matches the docstrings and the registry."""

import pathlib

import pytest

from dape_jax import encodings
from dape_jax.encodings import reference_page

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "encodings.md"


def test_page_is_up_to_date():
  assert PAGE.read_text() == reference_page.page(), (
      "regenerate it: python -m dape_jax.encodings.reference_page"
      " > docs/encodings.md"
  )


@pytest.mark.parametrize(
    "name, count",
    [
        ("alibi", 0),
        ("kerple_log", 24),
        ("kerple_bias_wht", 48),
        ("t5", 32 * 12),
        ("fire", 2 + 32 + 32 + 32 * 12 + 12),
        ("fox", 768 * 12 + 12),
        ("cope", 64 * 64),
        ("learned", 512 * 768),
        # The released network has 12 more, output biases that softmax cancels.
        ("dape_kerple_log", 24 + 1184),
    ],
)
def test_numbers_of_parameters(name, count):
  assert reference_page.num_parameters(name) == count


def test_memory_classes():
  assert reference_page.memory("cope") == "linear, in whole rows"
  assert reference_page.memory("fox") == "linear"
  assert reference_page.memory("dape_t5") == "linear, in kernels"


def test_docstring_without_a_source_is_rejected():
  class Unsourced(encodings.PositionalEncoding):
    """B = 0.

    Extrapolates: no.
    """

  with pytest.raises(
      ValueError, match='Unsourced: its docstring has no line "So'
  ):
    reference_page.lines_of(Unsourced)
