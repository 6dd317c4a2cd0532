"""FoX: forgetting transformer (Lin et al. 2025, arXiv 2503.02130)."""

import jax

from dape_jax.encodings.token_features import RunningSum


class Fox(RunningSum):
  """B_h(i, j) = c_i - c_j, c_i = sum_{k <= i} log sigmoid(x_k W + b)_h.

  The forget gate sigmoid(x_k W + b) of each token k between key and query
  scales down the weight of that key. x is the input of the projections;
  W [D, N] ~ N(0, 0.02^2) and b [N] = 0 at init, as in the authors' code, so
  every gate starts near 1/2. Computed in float32 regardless of x's dtype.

  c sums over all tokens of a row except padding. The contribution of earlier
  documents cancels in the difference, so packed documents have the same biases
  as on their own, up to rounding. The rounding error does not grow with length
  up to c = 2^20 (see `running_sum`). Without a causal mask, a key after the
  query has the bias c_j - c_i, the same decay in the other direction.

  Source: Lin et al. 2025, section 3, arXiv 2503.02130.
  Extrapolates: yes.

  Attributes:
    num_heads: N.
  """

  def steps(self, logits: jax.Array) -> jax.Array:
    return jax.nn.log_sigmoid(logits)
