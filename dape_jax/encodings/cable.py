"""CABLE: context-aware biases for length extrapolation (Veisi et al. 2025)."""

import jax

from dape_jax.encodings.token_features import RunningSum


class Cable(RunningSum):
  """B_h(i, j) = c_i - c_j, c_i = -sum_{k <= i} softplus(x_k W + b)_h.

  x is the input of the projections; W [D, N] ~ N(0, 0.02^2) and b [N] = 0 at
  init. This follows the authors' released code. The paper has a different
  formula, g(x_i) (c_i - c_j) with ReLU instead of softplus, which the code does
  not implement. The released form equals FoX with x W + b negated, since
  -softplus(y) = log sigmoid(-y). Departure: the released code does not divide
  q . k by sqrt(H); here scores are scaled as for every encoding.

  For rounding, packed documents and keys after the query, see `Fox`.

  Source: Veisi et al. 2025, arXiv 2503.08067, the released code.
  Extrapolates: yes.

  Attributes:
    num_heads: N.
  """

  def steps(self, logits: jax.Array) -> jax.Array:
    return -jax.nn.softplus(logits)
