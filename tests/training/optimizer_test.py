"""Learning rate schedule, weight decay mask and gradient clipping."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dape_jax.config import OptimizerConfig
from dape_jax.errors import ConfigError
from dape_jax.models import Transformer
from dape_jax.training.optimizer import (
    learning_rate_schedule,
    make_optimizer,
    matrices_mask,
)


def test_schedule_warms_up_linearly_and_ends_at_the_final_rate():
  config = OptimizerConfig(
      learning_rate=0.5, final_learning_rate=0.25, warmup_steps=10
  )
  schedule = learning_rate_schedule(config, steps=101)
  rates = np.array([schedule(step) for step in range(101)])
  np.testing.assert_allclose(rates[:11], np.arange(11) / 20, rtol=1e-6)
  np.testing.assert_allclose(rates[55], 0.375, rtol=1e-6)  # half the cosine
  np.testing.assert_allclose(rates[100], 0.25, rtol=1e-6)
  assert np.all(np.diff(rates[10:]) < 0)


@pytest.mark.parametrize(
    "warmup, steps, expected", [(0, 1, [1]), (1, 2, [0, 1]), (0, 2, [1, 0])]
)
def test_schedule_of_very_short_runs(warmup, steps, expected):
  config = OptimizerConfig(
      learning_rate=1.0, final_learning_rate=0.0, warmup_steps=warmup
  )
  schedule = learning_rate_schedule(config, steps)
  rates = [float(schedule(step)) for step in range(steps)]
  np.testing.assert_allclose(rates, expected, atol=1e-7)


def test_warmup_longer_than_the_run_is_refused():
  with pytest.raises(ConfigError, match=r"warmup_steps=500.*steps=500"):
    make_optimizer(OptimizerConfig(), steps=500)


def _shapes(make_config, **changes):
  model = Transformer(make_config(changes).model)
  tokens_BxT = jnp.zeros((1, 1), jnp.int32)
  return jax.eval_shape(model.init, jax.random.key(0), tokens_BxT)["params"]


@pytest.mark.parametrize("encoding", ["dape_kerple_log", "dape_v2_fire"])
@pytest.mark.parametrize("share", [True, False])
def test_matrices_mask_excludes_biases_norms_and_encodings(
    make_config, encoding, share
):
  shapes = _shapes(
      make_config,
      **{"model.encoding": encoding, "model.share_encoding": share},
  )
  seen = {"matrix": 0, "encoding": 0, "vector": 0}
  for (path, leaf), decayed in zip(
      jax.tree_util.tree_leaves_with_path(shapes),
      jax.tree.leaves(matrices_mask(shapes)),
      strict=True,
  ):
    keys = [entry.key for entry in path]
    if "encoding" in keys:
      kind = "encoding"
    elif keys[-1] in ("bias", "scale"):
      kind = "vector"
    else:
      kind = "matrix"
      assert keys[-1] in ("kernel", "embedding")
    seen[kind] += 1
    assert decayed == (kind == "matrix"), (keys, leaf.shape)
  assert all(seen.values()), seen


@pytest.mark.parametrize("decay", ["all", "matrices"])
def test_weight_decay_shrinks_the_selected_parameters(make_config, decay):
  shapes = _shapes(make_config)
  config = OptimizerConfig(
      learning_rate=0.1, warmup_steps=0, weight_decay=0.5, decay=decay
  )
  optimizer = make_optimizer(config, steps=10)

  @jax.jit
  def first_update():
    params = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), shapes)
    zeros = jax.tree.map(jnp.zeros_like, params)
    return optimizer.update(zeros, optimizer.init(params), params)[0]

  for (path, update), decayed in zip(
      jax.tree_util.tree_leaves_with_path(first_update()),
      jax.tree.leaves(matrices_mask(shapes)),
      strict=True,
  ):
    expected = -0.05 if decay == "all" or decayed else 0.0
    np.testing.assert_allclose(update, expected, rtol=1e-6, err_msg=str(path))


@pytest.mark.parametrize("clip_norm, expected", [(1.0, 0.5), (0.0, 5.0)])
def test_gradients_are_clipped_to_their_global_norm(clip_norm, expected):
  # With beta1 = beta2 = 0 and a huge eps, AdamW is SGD times 1 / eps.
  config = OptimizerConfig(
      learning_rate=1.0,
      warmup_steps=0,
      weight_decay=0.0,
      beta1=0.0,
      beta2=0.0,
      eps=1e6,
      clip_norm=clip_norm,
  )
  optimizer = make_optimizer(config, steps=10)
  params = {"a": jnp.zeros((2,)), "b": jnp.zeros((2, 1))}
  gradients = jax.tree.map(lambda x: jnp.full(x.shape, 5.0), params)
  updates, _ = optimizer.update(gradients, optimizer.init(params), params)
  for update in jax.tree.leaves(updates):
    np.testing.assert_allclose(update, -expected / 1e6, rtol=1e-4)
