"""The training step and the evaluation step, each one jitted program."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from dape_jax.checkpoint.state import TrainState
from dape_jax.encodings import randomized_positions
from dape_jax.parallel import partitioning


def weighted_nats(
    logits_BxTxV: jax.Array, targets_BxT: jax.Array, weights_BxT: jax.Array
) -> jax.Array:
  """Returns the weighted sum of the tokens' cross entropies.

  Args:
    logits_BxTxV: any float type; the cross entropy is computed in float32.
    targets_BxT: int32 token ids.
    weights_BxT: float32; tokens with weight 0 are ignored.

  Returns:
    float32 scalar in nats; NaN if a target with nonzero weight is not a valid
    id.
  """
  logits_BxTxV = logits_BxTxV.astype(jnp.float32)
  ids_BxTxV = jax.lax.broadcasted_iota(jnp.int32, logits_BxTxV.shape, 2)
  is_target_BxTxV = ids_BxTxV == targets_BxT[..., None]
  # A gather would make TPUs write several copies of all logits.
  picked_BxT = jnp.sum(logits_BxTxV, axis=-1, where=is_target_BxTxV)
  is_id_BxT = (targets_BxT >= 0) & (targets_BxT < logits_BxTxV.shape[-1])
  picked_BxT = jnp.where(is_id_BxT, picked_BxT, jnp.nan)
  nats_BxT = jax.nn.logsumexp(logits_BxTxV, axis=-1) - picked_BxT
  return jnp.sum(jnp.where(weights_BxT == 0, 0.0, nats_BxT * weights_BxT))


def _microbatch_nats(
    params: Any,
    model: nn.Module,
    rows: dict[str, jax.Array],
    rngs: dict[str, jax.Array] | None = None,
) -> jax.Array:
  logits_BxTxV = model.apply(
      {"params": params},
      rows["inputs"],
      segment_ids=rows["segment_ids"],
      positions=rows["positions"],
      rngs=rngs,
  )
  return weighted_nats(logits_BxTxV, rows["targets"], rows["loss_weights"])


def loss_count(weights_AxBxT: jax.Array, loss_mean: str) -> jax.Array:
  """Returns the float32 divisor of a batch's nats.

  Args:
    weights_AxBxT: loss weights of the tokens.
    loss_mean: as in `TrainConfig`: "token" for the sum of weights, "row" for
      the number of rows with a positive weight.
  """
  if loss_mean == "row":
    return jnp.sum(jnp.any(weights_AxBxT > 0, axis=-1), dtype=jnp.float32)
  return jnp.sum(weights_AxBxT)


def make_train_step(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    mesh: jax.sharding.Mesh,
    *,
    max_position: int = 0,
    loss_mean: str = "token",
    seed: int = 0,
) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
  """Returns the jitted step (state, batch) -> (state, metrics).

  The batch has arrays [A, B, T] from `partitioning.global_batch`. The A
  microbatches run one after another; nats and gradients are summed, then
  divided by the count of the entire batch, so the result does not depend on A.
  The input state is donated.

  The metrics are float32 scalars: loss (nats per weighted token or per row,
  before the update), gradient_norm (global, before clipping), learning_rate (of
  this update) and tokens (weighted tokens in the batch).

  Args:
    model: the transformer.
    optimizer: see `make_optimizer`.
    schedule: the optimizer's learning rate, for the metrics.
    mesh: see `partitioning.make_mesh`; the state is sharded over it according
      to `partitioning.state_sharding`.
    max_position: draws each row's positions at random below this number, see
      `randomized_positions`; 0 keeps the batch's positions.
    loss_mean: see `loss_count`.
    seed: seed of random positions and dropout, which also depend on the step.
  """

  def with_random_positions(batch, step):
    positions = batch["positions"]
    key = jax.random.fold_in(jax.random.key(seed), step)
    draw = functools.partial(randomized_positions, max_length=max_position)
    keys = jax.random.split(key, len(positions))
    return batch | {"positions": jax.vmap(draw)(keys, positions)}

  def dropout_keys(step, num_microbatches):
    # Differs from the keys of positions: no step has this number.
    key = jax.random.fold_in(jax.random.key(seed), 2**32 - 1)
    return jax.random.split(jax.random.fold_in(key, step), num_microbatches)

  on_mesh = jax.lax.with_sharding_constraint

  def train_step(state, batch):
    shardings = partitioning.state_sharding(state, mesh)
    if max_position:
      batch = with_random_positions(batch, state.step)

    def accumulate(total, microbatch):
      nats, gradients = jax.value_and_grad(_microbatch_nats)(
          state.params, model, *microbatch
      )
      gradients = on_mesh(gradients, shardings.params)
      return jax.tree.map(jnp.add, total, (nats, gradients)), None

    zeros = jnp.zeros((), jnp.float32), jax.tree.map(
        jnp.zeros_like, state.params
    )
    weights = batch["loss_weights"]
    rngs = {"dropout": dropout_keys(state.step, len(weights))}
    with partitioning.logical_axes(mesh):
      (nats, gradients), _ = jax.lax.scan(accumulate, zeros, (batch, rngs))
    # A batch may have no targets, for example with windows of length 1.
    count = loss_count(weights, loss_mean)
    scale = 1 / jnp.where(count > 0, count, 1.0)
    gradients = jax.tree.map(lambda g: g * scale, gradients)
    updates, opt_state = optimizer.update(
        gradients, state.opt_state, state.params
    )
    metrics = {
        "loss": nats * scale,
        "gradient_norm": optax.tree.norm(gradients),
        "learning_rate": jnp.asarray(schedule(state.step), jnp.float32),
        "tokens": jnp.sum(weights),
    }
    state = TrainState(
        step=state.step + 1,
        params=optax.apply_updates(state.params, updates),
        opt_state=opt_state,
    )
    return on_mesh(state, shardings), metrics

  return jax.jit(
      train_step,
      donate_argnums=0,
      out_shardings=(None, partitioning.replicated(mesh)),
  )


def make_eval_step(
    model: nn.Module, mesh: jax.sharding.Mesh, *, loss_mean: str = "token"
) -> Callable[..., tuple[jax.Array, jax.Array]]:
  """Returns the jitted step (params, batch) -> (sum of nats, count).

  Args:
    model: the transformer.
    mesh: see `partitioning.make_mesh`; the batch is as in `make_train_step`.
    loss_mean: see `loss_count`.
  """

  def eval_step(params, batch):
    def accumulate(total, rows):
      return total + _microbatch_nats(params, model, rows), None

    with partitioning.logical_axes(mesh):
      nats, _ = jax.lax.scan(accumulate, jnp.zeros((), jnp.float32), batch)
    return nats, loss_count(batch["loss_weights"], loss_mean)

  return jax.jit(eval_step, out_shardings=partitioning.replicated(mesh))
