"""Operations on the channels of each (query, key) pair of a tile.

Tile functions use these so that they run both in XLA and inside TPU kernels.
Arrays are channels first.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from dape_jax.array_typing import PerHead


def per_head(x: PerHead) -> jax.Array:
  """Returns a per-head parameter that broadcasts over a tile, [N, 1, 1].

  A kernel passes such a parameter as [N, s], with one copy per key of the tile.
  The result is then [N, 1, s], with a separate gradient for each key.
  """
  return x.reshape(x.shape[0], 1, -1)


def per_channel(x: PerHead) -> jax.Array:
  """Returns a per-channel parameter that broadcasts over pairs, [C, 1]."""
  return x.reshape(x.shape[0], -1)[:, :1]


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def leaky_relu(x: jax.Array, negative_slope: float) -> jax.Array:
  """Returns max(x, negative_slope x), for a slope of 1 or less.

  Takes two operations forward and two backward, half as many as autodiff. This
  matters in kernels, where the hidden layers are the largest arrays. At 0 the
  gradient is that of the negative side, as in PyTorch.
  """
  return jnp.maximum(x, negative_slope * x)


@leaky_relu.defjvp
def _leaky_relu_jvp(negative_slope, primals, tangents):
  (x,), (dx,) = primals, tangents
  out = leaky_relu(x, negative_slope)
  return out, jnp.where(x > 0, dx, negative_slope * dx)


def pairwise_linear(
    x_Cxtxs: jax.Array,
    kernel_CxE: jax.Array,
    operand_dtype: Any = None,
    *,
    split: bool = False,
) -> jax.Array:
  """Applies a linear map to the channels of every pair, [E, t, s].

  This is a single matrix product over all pairs of the tile, with the kernel
  first, so that the result is channels first without a transpose.

  Args:
    x_Cxtxs: channels first. Also accepts [C, P]; the result is then [E, P].
    kernel_CxE: parameter.
    operand_dtype: see `Tile`.
    split: splits each operand into a sum of two rounded numbers and computes
      three of the four products, which corrects rounding to first order. Use it
      for channels that reach hundreds, where bfloat16 has a spacing of 1 or 2.
  """
  x_CxP = x_Cxtxs.reshape(len(x_Cxtxs), -1)
  if len(x_CxP) == 1:
    out_ExP = kernel_CxE.reshape(-1, 1) * x_CxP
  elif operand_dtype is None:
    out_ExP = jnp.matmul(kernel_CxE.T, x_CxP, precision="highest")
  else:
    out_ExP = _rounded_matmul(x_CxP, kernel_CxE, operand_dtype, split)
  return out_ExP.reshape(-1, *x_Cxtxs.shape[1:])


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _rounded_matmul(x_CxP, kernel_CxE, dtype, split):
  """Returns kernel^T x, [E, P] float32, with operands rounded to `dtype`.

  The operands of both gradients are rounded too; autodiff would keep them in
  the accumulation dtype.
  """
  return _rounded_matmul_forward(x_CxP, kernel_CxE, dtype, split)[0]


def _rounded_matmul_forward(x_CxP, kernel_CxE, dtype, split):
  residuals = x_CxP.astype(dtype), kernel_CxE.astype(dtype)
  if split:
    x, x_rest = _parts(x_CxP, dtype)
    kernel, kernel_rest = _parts(kernel_CxE, dtype)
    # A single product: the matrix unit has room for three times the channels.
    x_CxP = jnp.concatenate([x, x_rest, x])
    kernel_CxE = jnp.concatenate([kernel, kernel, kernel_rest])
  out_ExP = _matmul(kernel_CxE.T.astype(dtype), x_CxP.astype(dtype))
  return out_ExP, residuals


def _rounded_matmul_backward(dtype, split, residuals, dout_ExP):
  del split
  x_CxP, kernel_CxE = residuals
  dout_ExP = dout_ExP.astype(dtype)
  return _matmul(kernel_CxE, dout_ExP), _matmul(x_CxP, dout_ExP.T)


_rounded_matmul.defvjp(_rounded_matmul_forward, _rounded_matmul_backward)


def _parts(x, dtype):
  return rounded(x, dtype), x - rounded(x, dtype)


def rounded(x: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """Returns x rounded to `dtype`, in its original dtype."""
  return x.astype(dtype).astype(x.dtype)


def _matmul(x, y):
  # Kernels reject a higher default precision for bfloat16 operands.
  precision = jax.lax.Precision.DEFAULT
  return jnp.matmul(
      x, y, precision=precision, preferred_element_type=jnp.float32
  )


def pairwise_convolve(
    x_Cxtxs: jax.Array,
    kernel_kxCxE: jax.Array,
    operand_dtype: Any = None,
    *,
    split: bool = False,
) -> jax.Array:
  """Returns the valid cross-correlation along keys, [E, t, s - k + 1].

  out[e, i, j] = sum over d < k and c of kernel[d, c, e] x[c, i, j + d],
  computed as one matrix product over k C channels.

  Args:
    x_Cxtxs: channels first.
    kernel_kxCxE: parameter.
    operand_dtype, split: see `pairwise_linear`.
  """
  size, _, out_channels = kernel_kxCxE.shape
  width = x_Cxtxs.shape[-1] - size + 1
  shifted = [x_Cxtxs[..., k : k + width] for k in range(size)]
  kernel = kernel_kxCxE.reshape(-1, out_channels)
  return pairwise_linear(
      jnp.concatenate(shifted), kernel, operand_dtype, split=split
  )
