"""Attention's arguments, batch element by batch element."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from dape_jax.attention.sharded import is_left_to_compiler


def map_batch(
    function: Callable[..., Any],
    arguments: dict[str, Any],
    *,
    together: int = 1,
) -> Any:
  """Returns `function(batched, shared)` of groups of batch elements, stacked.

  Positions of rank 1 are shared by the batch and stay so; everything else has
  the batch as its first axis. On one device the groups are walked one by one, so
  that what is in hand stays small. Over several devices all elements are one
  group, since walking an axis that lies on them would gather it on each.

  Args:
    function: takes two dicts that together are `arguments`: the batched ones
      with the axis [group], and the shared ones; returns arrays of [group, ...].
    arguments: trees of arrays, or None.
    together: elements in a group, a divisor of the batch size.
  """
  shared = {
      name: array
      for name, array in arguments.items()
      if name.endswith("_positions") and array.ndim == 1
  }
  batched = {k: v for k, v in arguments.items() if k not in shared}
  batch = batched["query"].shape[0]
  if is_left_to_compiler() or together == batch:
    return function(batched, shared)

  def split(x):
    return x.reshape(batch // together, together, *x.shape[1:])

  out = lax.map(
      lambda group: function(group, shared), jax.tree.map(split, batched)
  )
  return jax.tree.map(lambda x: x.reshape(batch, *x.shape[2:]), out)
