"""What attention is compiled for."""

import jax
import jax.numpy as jnp


def target_platform() -> str:
  """Returns what is compiled for: "cpu", "gpu" or "tpu".

  The mesh says it (also of chips that are not there, in ahead-of-time
  compilation), without one the default backend does.
  """
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.default_backend() if device is None else device.platform


def operand_dtype(query_dtype: jnp.dtype) -> jnp.dtype | None:
  """Returns `Tile.operand_dtype`: bfloat16 on a TPU for bfloat16 queries.

  The matrix unit takes bfloat16 operands in one pass and float32 in six.
  """
  if target_platform() == "tpu" and query_dtype == jnp.bfloat16:
    return query_dtype
  return None
