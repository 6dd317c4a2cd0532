"""Projections and norms of a model, with their initializers."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from dape_jax.config import ModelConfig


def projection_init(config: ModelConfig, fan_in: int, is_output: bool = False):
  """Returns the initializer of a projection kernel, by `config.init`.

  "dape": N(0, 2 / (5 width)), output projections with std
  2 / (layers sqrt(width)), as in the released configs of DAPE and GPT-NeoX.
  "kerple": N(0, 0.02^2), output projections with std 0.02 / sqrt(2 layers), as
  in GPT-2 and KERPLE. "ruoss": a normal distribution with std 1 / sqrt(fan_in)
  truncated at two std, as in Haiku.
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
  """Constrains activations [B, T, ...] to the sharding of the tokens.

  This makes the compiler move parameters to the activations rather than the
  reverse. Flax's logical axis rules map "batch" and "length" to mesh axes;
  without rules, `x` is returned unchanged.
  """
  names = ("batch", "length", *[None] * (x_BxTx.ndim - 2))
  return nn.with_logical_constraint(x_BxTx, names)


class Einsum(nn.Module):
  """y = einsum(equation, x, kernel) + bias, in the compute dtype.

  Attributes:
    equation: einsum of x and the kernel.
    kernel_shape: shape of the float32 parameter `kernel`.
    bias_shape: shape of the float32 parameter `bias`; None for no bias.
    kernel_init: initializer of the kernel.
    dtype: compute dtype.
    out_dtype: output and minimum accumulation dtype; default `dtype`.
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
  """Returns a LayerNorm with float32 statistics and output in config.dtype."""
  return nn.LayerNorm(epsilon=1e-5, dtype=jnp.dtype(config.dtype))
