"""The platform that attention is compiled for."""

import jax
import jax.numpy as jnp


def target_platform() -> str:
  """Returns the platform compiled for: "cpu", "gpu" or "tpu".

  This is the platform of the current mesh, which may have no physical devices
  (ahead-of-time compilation), or else of the default backend.
  """
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.default_backend() if device is None else device.platform


def operand_dtype(query_dtype: jnp.dtype) -> jnp.dtype | None:
  """Returns `Tile.operand_dtype`: bfloat16 on a TPU for bfloat16 queries.

  The matrix unit needs one pass for bfloat16 operands and six for float32.
  """
  if target_platform() == "tpu" and query_dtype == jnp.bfloat16:
    return query_dtype
  return None
