"""NoPE: no position encoding; the causal mask alone conveys order."""

from dape_jax.encodings.base import PositionalEncoding


class Nope(PositionalEncoding):
  """A = S.

  Source: Haviv et al. 2022, arXiv 2203.16634; Kazemnejad et al. 2023,
  arXiv 2305.19466.
  Extrapolates: somewhat (Kazemnejad et al.).
  """

  num_heads: int
