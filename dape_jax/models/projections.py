"""Projections and norms of a model, and how they begin."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from dape_jax.config import ModelConfig


def projection_init(config: ModelConfig, fan_in: int, is_output: bool = False):
  """Returns the initialiser of a projection's kernel.

  "dape": N(0, 2 / (5 width)), output projections std 2 / (layers sqrt(width)),
  as DAPE's and GPT-NeoX's released configs. "kerple": N(0, 0.02^2), output
  projections 0.02 / sqrt(2 layers), as GPT-2 and KERPLE's. "ruoss": a normal
  distribution of std 1 / sqrt(fan_in) cut at two std, as Haiku's.
  """
  if config.init == "ruoss":
    return nn.initializers.truncated_normal(fan_in**-0.5)
  if config.init == "dape":
    if is_output:
      stddev = 2 / (config.num_layers * config.width**0.5)
    else:
      stddev = (2 / (5 * config.width)) ** 0.5
  else:
    stddev = 0.02 / ((2 * config.num_layers) ** 0.5 if is_output else 1)
  return nn.initializers.normal(stddev)


def placed(x_BxTx: jax.Array) -> jax.Array:
  """Returns activations [B, T, ...], split over devices as rows and tokens are.

  So that compilers bring parameters to the activations, and not the reverse. Where
  "batch" and "length" lie, flax's logical axis rules say; without any, `x` is
  returned as it is.
  """
  names = ("batch", "length", *[None] * (x_BxTx.ndim - 2))
  return nn.with_logical_constraint(x_BxTx, names)


class Einsum(nn.Module):
  """y = einsum(equation, x, kernel) + bias, in the compute dtype.

  Attributes:
    equation: of x and kernel.
    kernel_shape: parameter `kernel`, float32.
    bias_shape: parameter `bias`, float32, or None for no bias.
    kernel_init: of the kernel.
    dtype: of the computation.
    out_dtype: of the result, accumulated in at least it; default `dtype`.
  """

  equation: str
  kernel_shape: tuple[int, ...]
  bias_shape: tuple[int, ...] | None
  kernel_init: nn.initializers.Initializer
  dtype: jnp.dtype
  out_dtype: jnp.dtype | None = None

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    kernel = self.param("kernel", self.kernel_init, self.kernel_shape)
    y = jnp.einsum(
        self.equation,
        x.astype(self.dtype),
        kernel.astype(self.dtype),
        preferred_element_type=self.out_dtype,
    )
    if self.bias_shape is not None:
      bias = self.param("bias", nn.initializers.zeros, self.bias_shape)
      shape = (1,) * (y.ndim - bias.ndim) + bias.shape
      y = y + bias.astype(y.dtype).reshape(shape)
    return y


def layer_norm(config: ModelConfig) -> nn.LayerNorm:
  """Returns LayerNorm with statistics in float32, output in config.dtype."""
  return nn.LayerNorm(epsilon=1e-5, dtype=jnp.dtype(config.dtype))
