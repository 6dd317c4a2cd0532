"""AdamW with warmup, cosine decay, gradient clipping and weight decay masks."""

from typing import Any

import jax
import optax

from dape_jax.config import OptimizerConfig
from dape_jax.errors import ConfigError


def learning_rate_schedule(
    config: OptimizerConfig, steps: int
) -> optax.Schedule:
  """Returns the learning rate as a function of the number of previous updates.

  Linear warmup from 0 to `learning_rate` over `warmup_steps` updates, then
  cosine decay that reaches `final_learning_rate` at the last update.

  Args:
    config: learning rates and warmup.
    steps: number of updates in the entire run.

  Raises:
    ConfigError: the warmup does not end within the run.
  """
  if config.warmup_steps >= steps:
    raise ConfigError(
        f"config.optimizer.warmup_steps={config.warmup_steps}: must be less"
        f" than config.train.steps={steps}."
    )
  # The last update has index steps - 1. If the warmup ends there, it uses the
  # peak rate.
  cosine = optax.cosine_decay_schedule(
      config.learning_rate,
      decay_steps=max(steps - 1 - config.warmup_steps, 1),
      alpha=config.final_learning_rate / config.learning_rate,
  )
  if config.warmup_steps == 0:
    return cosine
  warmup = optax.linear_schedule(0.0, config.learning_rate, config.warmup_steps)
  return optax.join_schedules([warmup, cosine], [config.warmup_steps])


def matrices_mask(params: Any) -> Any:
  """Returns the weight decay mask for `decay="matrices"`.

  Args:
    params: nested dict of arrays; axis 0 of those under the top-level key
      "layers" is the layer.

  Returns:
    A tree of bools with the structure of `params`: True for network weights
    with two or more axes per layer; False for biases, norms and everything
    under "encoding".
  """

  def is_matrix(path, leaf) -> bool:
    keys = [entry.key for entry in path]
    axes = leaf.ndim - (keys[0] == "layers")
    return axes >= 2 and "encoding" not in keys and keys[-1] != "bias"

  return jax.tree_util.tree_map_with_path(is_matrix, params)


def make_optimizer(
    config: OptimizerConfig, steps: int
) -> optax.GradientTransformation:
  """Returns the optimizer of a run of `steps` updates.

  Raises:
    ConfigError: the warmup does not end within the run.
  """
  adamw = optax.adamw(
      learning_rate_schedule(config, steps),
      b1=config.beta1,
      b2=config.beta2,
      eps=config.eps,
      weight_decay=config.weight_decay,
      mask=matrices_mask if config.decay == "matrices" else None,
  )
  if config.clip_norm == 0:
    return adamw
  return optax.chain(optax.clip_by_global_norm(config.clip_norm), adamw)
