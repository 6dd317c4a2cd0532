"""FoX: forgetting transformer (Lin et al. 2025, arXiv 2503.02130)."""

import jax

from dape_jax.encodings.token_features import RunningSum


class Fox(RunningSum):
  """B_h(i, j) = c_i - c_j, c_i = sum_{k <= i} log sigmoid(x_k W + b)_h.

  Each token k between the two multiplies the weight of what lies before it by
  its forget gate sigmoid(x_k W + b). x is the input of the projections;
  W [D, N] ~ N(0, 0.02^2) and b [N] = 0 at init, as in the authors' code, so
  that every gate starts near 1/2. Computed in float32 whatever x's dtype.

  c runs over all tokens of a row, padding left out. What earlier documents add
  to it cancels in the difference, so packed documents have the biases they have
  alone, up to rounding, which does not grow with the length up to c = 2^20 (see
  `running_sum`). Without a causal mask a key after the query has c_j - c_i, the decay between
  the two either way.

  Source: Lin et al. 2025, section 3, arXiv 2503.02130.
  Extrapolates: yes.

  Attributes:
    num_heads: N.
  """

  def steps(self, logits: jax.Array) -> jax.Array:
    return jax.nn.log_sigmoid(logits)
