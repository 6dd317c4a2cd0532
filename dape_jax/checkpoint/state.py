"""The training state, its initial value and its checksum."""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax


@flax.struct.dataclass
class TrainState:
  """State that a training step updates.

  Attributes:
    step: int32 scalar, number of updates done.
    params: nested dict of float32 arrays.
    opt_state: state of the optimizer.
  """

  step: jax.Array
  params: Any
  opt_state: Any


def init_params(model: nn.Module, key: jax.Array) -> Any:
  """Returns the initial parameters of a model; can be jitted or traced."""
  # Parameter shapes do not depend on the sequence length, so one token
  # suffices.
  return model.init(key, jnp.zeros((1, 1), jnp.int32))["params"]


def init_state(
    model: nn.Module, optimizer: optax.GradientTransformation, seed: int
) -> TrainState:
  """Returns the state before the first step; can be jitted.

  Args:
    model: called as model.init(key, tokens [B, T]).
    optimizer: see `make_optimizer`.
    seed: seed of the parameter initialization.
  """
  params = init_params(model, jax.random.key(seed))
  return TrainState(
      step=jnp.zeros((), jnp.int32),
      params=params,
      opt_state=optimizer.init(params),
  )


@jax.jit
def bit_checksum(tree: Any) -> jax.Array:
  """Returns the wrapping uint32 sum of the bits of a tree of 4-byte arrays."""
  bits = lambda leaf: jax.lax.bitcast_convert_type(leaf, jnp.uint32)
  leaves = jax.tree.leaves(tree)
  return sum(jnp.sum(bits(leaf), dtype=jnp.uint32) for leaf in leaves)
