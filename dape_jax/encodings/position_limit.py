"""Positions that an encoding has no numbers for are an error, under jit too."""

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
  """Returns positions, if all of them are in 0..limit - 1; otherwise raises.

  Known positions are checked at once, traced ones when the compiled program
  runs: it calls the host, only if one is outside, and what is made of the
  result waits for that call. `jax.vmap` over positions calls the host every
  time.

  The runtime of TPUs drops what a callback raises. There nothing is raised for
  traced positions, and each one outside is returned as `limit`: make NaN of it.

  Args:
    positions: int32, any shape.
    limit: number of positions that have numbers.
    message: what the error says after "position P: ".
    beside: an array of the same program. If no mesh is set, it or `positions`
      says whether several devices run it.

  Raises:
    ConfigError: a position is outside; under jit JAX raises its own error with
      the same message.
  """
  if positions.size == 0:
    return positions
  if not isinstance(positions, jax.core.Tracer):
    # Reduced by JAX: an array may lie on the devices of other processes.
    with jax.ensure_compile_time_eval():
      ends = int(jnp.min(positions)), int(jnp.max(positions))
    for position in ends:
      if not 0 <= position < limit:
        raise ConfigError(f"position {position}: {message}")
    return positions

  mesh = jax.sharding.get_abstract_mesh()
  lowest, highest = jnp.min(positions), jnp.max(positions)
  # One by one: positions may differ along some of them only.
  for axis in mesh.manual_axes:
    lowest = jax.lax.pmin(lowest, axis)
    highest = jax.lax.pmax(highest, axis)
  worst = jnp.where(lowest < 0, lowest, highest)
  for array in (positions, beside):
    if mesh.empty and array is not None:
      mesh = jax.typeof(array).sharding.mesh

  def raise_error(worst):
    worst = np.asarray(worst)
    # Under vmap this runs for positions inside as well.
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
    # A callback on the first device alone, as jit makes it, would leave the
    # others waiting for that device for ever.
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
  # `failed` is always 0: what uses the positions needs the check to be done.
  outside = (positions < 0) | (positions >= limit) | (failed != 0)
  return jnp.where(outside, limit, positions)
