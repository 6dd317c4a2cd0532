"""One optimizer step and one evaluation step, each one jitted program."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from dape_jax.encodings import randomized_positions
from dape_jax.training import partitioning
from dape_jax.training.state import TrainState


def weighted_nats(
    logits_BxTxV: jax.Array, targets_BxT: jax.Array, weights_BxT: jax.Array
) -> jax.Array:
  """Returns the cross entropy summed over tokens times their weights.

  Args:
    logits_BxTxV: any float type; the cross entropy is float32.
    targets_BxT: int32 token ids.
    weights_BxT: float32; 0 leaves a token out.

  Returns:
    float32 scalar in nats.
  """
  nats_BxT = optax.softmax_cross_entropy_with_integer_labels(
      logits_BxTxV.astype(jnp.float32), targets_BxT
  )
  return jnp.sum(nats_BxT * weights_BxT)


def _microbatch_nats(
    params: Any, model: nn.Module, rows: dict[str, jax.Array]
) -> jax.Array:
  logits_BxTxV = model.apply(
      {"params": params},
      rows["inputs"],
      segment_ids=rows["segment_ids"],
      positions=rows["positions"],
  )
  return weighted_nats(logits_BxTxV, rows["targets"], rows["loss_weights"])


def make_train_step(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    mesh: jax.sharding.Mesh,
    *,
    max_position: int = 0,
    seed: int = 0,
) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
  """Returns the jitted step (state, batch) -> (state, metrics).

  The batch has arrays [A, B, T] of `partitioning.global_batch`; the A
  microbatches run one after the other. The result is that of the unsplit batch:
  nats and gradients are summed, then divided by the weight of the whole batch.
  The state passed in is donated.

  The metrics are float32 scalars: loss (nats per weighted token, of the
  parameters before the update), gradient_norm (global, before clipping),
  learning_rate (of this update) and tokens (weighted tokens of the batch).

  Args:
    model: the decoder.
    optimizer: of `make_optimizer`.
    schedule: the optimizer's learning rate, for the metrics.
    mesh: of `partitioning.make_mesh`.
    max_position: draw each row's positions at random from as many, see
      `randomized_positions`; 0 takes them as they are.
    seed: of these positions, which also depend on the step.
  """

  def with_random_positions(batch, step):
    positions = batch["positions"]
    key = jax.random.fold_in(jax.random.key(seed), step)
    draw = functools.partial(randomized_positions, max_length=max_position)
    keys = jax.random.split(key, len(positions))
    return batch | {"positions": jax.vmap(draw)(keys, positions)}

  def train_step(state, batch):
    if max_position:
      batch = with_random_positions(batch, state.step)

    def accumulate(total, rows):
      value_and_grad = jax.value_and_grad(_microbatch_nats)(
          state.params, model, rows
      )
      return jax.tree.map(jnp.add, total, value_and_grad), None

    zeros = jnp.zeros((), jnp.float32), jax.tree.map(
        jnp.zeros_like, state.params
    )
    (nats, gradients), _ = jax.lax.scan(accumulate, zeros, batch)
    tokens = jnp.sum(batch["loss_weights"])
    # Windows without any target (length 1, say) make no loss, not 0 / 0.
    scale = 1 / jnp.where(tokens > 0, tokens, 1.0)
    gradients = jax.tree.map(lambda g: g * scale, gradients)
    updates, opt_state = optimizer.update(
        gradients, state.opt_state, state.params
    )
    metrics = {
        "loss": nats * scale,
        "gradient_norm": optax.tree.norm(gradients),
        "learning_rate": jnp.asarray(schedule(state.step), jnp.float32),
        "tokens": tokens,
    }
    state = TrainState(
        step=state.step + 1,
        params=optax.apply_updates(state.params, updates),
        opt_state=opt_state,
    )
    return state, metrics

  return jax.jit(
      train_step,
      donate_argnums=0,
      out_shardings=partitioning.replicated(mesh),
  )


def make_eval_step(
    model: nn.Module, mesh: jax.sharding.Mesh
) -> Callable[..., tuple[jax.Array, jax.Array]]:
  """Returns the jitted step (params, batch) -> (sum of nats, sum of weights).

  Args:
    model: the decoder.
    mesh: of `partitioning.make_mesh`; the batch is as in `make_train_step`.
  """

  def eval_step(params, batch):
    def accumulate(total, rows):
      return total + _microbatch_nats(params, model, rows), None

    nats, _ = jax.lax.scan(accumulate, jnp.zeros((), jnp.float32), batch)
    return nats, jnp.sum(batch["loss_weights"])

  return jax.jit(eval_step, out_shardings=partitioning.replicated(mesh))
