"""NoPE: no position encoding; order comes from the causal mask alone."""

from dape_jax.encodings.base import PositionalEncoding


class Nope(PositionalEncoding):
  """A = S (Haviv et al. 2022, arXiv 2203.16634; Kazemnejad et al. 2023)."""

  num_heads: int
