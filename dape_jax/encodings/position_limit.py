"""Errors for positions beyond the limit of an encoding, also under jit."""

import jax
import jax.numpy as jnp
import numpy as np

from dape_jax.errors import ConfigError


def checked_positions(
    positions: jax.Array,
    limit: int,
    message: str,
    beside: jax.Array | None = None,
) -> jax.Array:
  """Returns positions if all of them are in 0..limit - 1; otherwise raises.

  Concrete positions are checked immediately, traced ones when the compiled
  program runs. The program then calls the host only if a position is out of
  range, and users of the result wait for that call. Under `jax.vmap` over
  positions it calls the host every time.

  The TPU runtime drops exceptions of callbacks. On TPU nothing is raised for
  traced positions, and each one out of range is returned as `limit`; callers
  must turn it into NaN.

  Args:
    positions: int32, any shape.
    limit: number of supported positions.
    message: error message after "position P: ".
    beside: another array of the same program. If no mesh is set, the mesh is
      taken from it or from `positions`.

  Raises:
    ConfigError: a position is out of range; under jit, JAX raises its own error
      with the same message.
  """
  if positions.size == 0:
    return positions
  if not isinstance(positions, jax.core.Tracer):
    # Reduce with JAX: an array may be on devices of other processes.
    with jax.ensure_compile_time_eval():
      ends = int(jnp.min(positions)), int(jnp.max(positions))
    for position in ends:
      if not 0 <= position < limit:
        raise ConfigError(f"position {position}: {message}")
    return positions

  mesh = jax.sharding.get_abstract_mesh()
  lowest, highest = jnp.min(positions), jnp.max(positions)
  # One axis at a time: positions may vary along some of them only.
  for axis in mesh.manual_axes:
    lowest = jax.lax.pmin(lowest, axis)
    highest = jax.lax.pmax(highest, axis)
  worst = jnp.where(lowest < 0, lowest, highest)
  for array in (positions, beside):
    if mesh.empty and array is not None:
      mesh = jax.typeof(array).sharding.mesh

  def raise_error(worst):
    worst = np.asarray(worst)
    # Under vmap this also runs for valid positions.
    outside = worst[(worst < 0) | (worst >= limit)]
    if outside.size:
      raise ConfigError(f"position {outside.flat[0]}: {message}")
    return np.zeros_like(worst)

  def call_host(worst):
    shape = jax.ShapeDtypeStruct(worst.shape, worst.dtype)
    return jax.pure_callback(
        raise_error, shape, worst, vmap_method="broadcast_all"
    )

  auto_axes = set(mesh.axis_names) - set(mesh.manual_axes)
  if auto_axes:
    # jit runs a callback on the first device only, and the other devices would
    # wait for it forever.
    spec = jax.sharding.PartitionSpec()
    call_host = jax.shard_map(
        call_host,
        mesh=mesh,
        in_specs=spec,
        out_specs=spec,
        axis_names=auto_axes,
        check_vma=False,
    )

  def check(worst):
    outside = (worst < 0) | (worst >= limit)
    return jax.lax.cond(outside, call_host, jnp.zeros_like, worst)

  failed = jax.lax.platform_dependent(worst, tpu=jnp.zeros_like, default=check)
  # `failed` is always 0; it makes users of the positions depend on the check.
  outside = (positions < 0) | (positions >= limit) | (failed != 0)
  return jnp.where(outside, limit, positions)
