"""Invariants of every encoding with per-token features."""

import pytest
import token_cases

from dape_jax.encodings import Cable, Cope, Fox, TransformerXL

HEADS = token_cases.HEADS


@pytest.mark.parametrize(
    "encoding",
    [
        Cable(HEADS),
        Cope(HEADS, max_position=4),
        Fox(HEADS),
        TransformerXL(HEADS),
    ],
    ids=lambda encoding: type(encoding).__name__,
)
@pytest.mark.parametrize(
    "check",
    [
        token_cases.check_gradients,
        token_cases.check_packed_documents,
        token_cases.check_continuation,
        token_cases.check_bfloat16,
    ],
)
def test_law(check, encoding):
  check(encoding)
