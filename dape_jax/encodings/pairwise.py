"""Maths on the numbers that each (query, key) pair of a tile has, channels first.

What tile functions are written with, so that they run in XLA and inside a TPU
kernel alike.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from dape_jax.array_typing import PerHead


def per_head(x: PerHead) -> jax.Array:
  """Returns one number per head ready to broadcast over a tile, [N, 1, 1].

  A kernel hands such a parameter as [N, s], a copy for each key of the tile;
  then the result is [N, 1, s], and its gradient comes apart for each key.
  """
  return x.reshape(x.shape[0], 1, -1)


def per_channel(x: PerHead) -> jax.Array:
  """Returns one number per channel ready to broadcast over pairs, [C, 1]."""
  return x.reshape(x.shape[0], -1)[:, :1]


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def leaky_relu(x: jax.Array, negative_slope: float) -> jax.Array:
  """Returns max(x, negative_slope x), for a slope of 1 or less.

  Two operations forward and two backward, half of what autodiff makes of it: in
  a kernel the hidden layers are the largest arrays. The gradient at 0 is the
  negative side's, as in PyTorch.
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
  """Returns the linear map of the channels of every pair, [E, t, s].

  One plain matrix product over all pairs of the tile, kernel first: the result
  comes out channels first, untransposed.

  Args:
    x_Cxtxs: channels first; [C, P] pairs give [E, P].
    kernel_CxE: parameter.
    operand_dtype: see `Tile`.
    split: make up for the rounding of operands to first order: each is the sum
      of two rounded numbers, and of the four products three are taken. For
      channels that reach hundreds, where bfloat16 steps by 1 or 2.
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
  """Returns kernel^T x, [E, P] float32, of operands rounded to `dtype`.

  So are the operands of its two gradients, which autodiff would leave as wide
  as the sums they come from.
  """
  return _rounded_matmul_forward(x_CxP, kernel_CxE, dtype, split)[0]


def _rounded_matmul_forward(x_CxP, kernel_CxE, dtype, split):
  residuals = x_CxP.astype(dtype), kernel_CxE.astype(dtype)
  if split:
    x, x_rest = _parts(x_CxP, dtype)
    kernel, kernel_rest = _parts(kernel_CxE, dtype)
    # One product: the matrix unit has room for three times the channels.
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
  """Returns x in its own dtype with the values it has in `dtype`."""
  return x.astype(dtype).astype(x.dtype)


def _matmul(x, y):
  # Kernels refuse a wider default than bfloat16 operands have.
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

  out[e, i, j] = sum over d < k and c of kernel[d, c, e] x[c, i, j + d]: one
  matrix product over k C channels.

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
