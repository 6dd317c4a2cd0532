"""Training and evaluation steps: accumulation and loss weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from given_batches import GivenBatches

from dape_jax.data import TrainBatches
from dape_jax.models import Transformer
from dape_jax.parallel import partitioning
from dape_jax.training.run import Program
from dape_jax.training.step import weighted_nats


def _batches(config, corpus):
  return TrainBatches(
      corpus.split("train"),
      length=config.data.length,
      batch_size=config.train.batch_size,
      seed=config.seed,
      packing=config.data.packing,
  )


@pytest.fixture(scope="module")
def train(tiny_corpus):
  """Returns a function that makes steps: metrics of each, final parameters."""

  def train(config, mesh, steps=3):
    batches = _batches(config, tiny_corpus)
    program = Program(config, mesh)
    history = []
    with jax.set_mesh(mesh):
      state = program.new_state()
      for step in range(steps):
        batch = partitioning.global_batch(
            batches, step, config.train.accumulation, mesh
        )
        state, metrics = program.train_step(state, batch)
        history.append(jax.device_get(metrics))
    assert int(state.step) == steps
    return history, jax.device_get(state.params)

  return train


@pytest.fixture(scope="module")
def unsplit(train, make_config, make_mesh):
  """Three steps of the tiny config on one device."""
  return train(make_config(), make_mesh(1))


def _assert_same(result, expected, tolerance):
  for got, want in zip(result[0], expected[0], strict=True):
    for name in want:
      np.testing.assert_allclose(got[name], want[name], rtol=tolerance)
  jax.tree.map(
      lambda got, want: np.testing.assert_allclose(got, want, atol=tolerance),
      result[1],
      expected[1],
  )


def test_accumulation_equals_the_unsplit_batch(
    train, unsplit, make_config, make_mesh
):
  split = train(make_config({"train.accumulation": 4}), make_mesh(1))
  # Microbatches have different numbers of tokens, so means of means differ.
  assert unsplit[0][0]["tokens"] < 8 * 32
  _assert_same(split, unsplit, 1e-5)


def test_weighted_nats_is_float32_and_ignores_weight_zero():
  logits_BxTxV = jnp.array([[[2.0, 0.0], [5.0, -5.0]]], jnp.bfloat16)
  targets_BxT = jnp.array([[1, 1]])
  nats = weighted_nats(logits_BxTxV, targets_BxT, jnp.array([[1.0, 0.0]]))
  assert nats.dtype == jnp.float32
  np.testing.assert_allclose(nats, np.log1p(np.exp(2.0)), rtol=1e-6)


@pytest.mark.parametrize("target", [-1, 2])
def test_invalid_target_is_nan_only_with_a_weight(target):
  logits_BxTxV = jnp.array([[[2.0, 0.0], [5.0, -5.0]]])
  targets_BxT = jnp.array([[1, target]])
  weights_BxT = jnp.array([[1.0, 0.0]])
  assert jnp.isnan(weighted_nats(logits_BxTxV, targets_BxT, 1 - weights_BxT))
  nats, gradient = jax.value_and_grad(weighted_nats)(
      logits_BxTxV, targets_BxT, weights_BxT
  )
  np.testing.assert_allclose(nats, np.log1p(np.exp(2.0)), rtol=1e-6)
  np.testing.assert_array_equal(gradient[0, 1], 0.0)


def test_batch_without_targets_has_zero_loss_and_gradient(
    make_config, make_mesh, tiny_corpus
):
  config, mesh = make_config(), make_mesh(8)
  program = Program(config, mesh)
  rows = _batches(config, tiny_corpus)[0]
  rows["loss_weights"] = np.zeros_like(rows["loss_weights"])
  with jax.set_mesh(mesh):
    _, metrics = program.train_step(
        program.new_state(),
        partitioning.global_batch(GivenBatches(rows), 0, 1, mesh),
    )
  assert metrics["tokens"] == 0
  assert metrics["loss"] == 0
  assert metrics["gradient_norm"] == 0


def test_eval_step_sums_over_microbatches(make_config, make_mesh, tiny_corpus):
  config, mesh = make_config(), make_mesh(1)
  model, program = Transformer(config.model), Program(config, mesh)
  params = program.new_state().params
  rows = _batches(config, tiny_corpus)[0]
  nats, weight = program.eval_step(
      params, partitioning.global_batch(GivenBatches(rows), 0, 2, mesh)
  )

  @jax.jit
  def whole(params, rows):
    logits_BxTxV = model.apply(
        {"params": params},
        rows["inputs"],
        segment_ids=rows["segment_ids"],
        positions=rows["positions"],
    )
    return weighted_nats(logits_BxTxV, rows["targets"], rows["loss_weights"])

  np.testing.assert_allclose(nats, whole(params, rows), rtol=1e-5)
  assert weight == rows["loss_weights"].sum()
