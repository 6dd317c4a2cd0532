"""Training steps on a task: mean over rows, random positions, dropout."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from given_batches import GivenBatches

from dape_jax.checkpoint.state import init_state
from dape_jax.config import ModelConfig
from dape_jax.data import TaskBatches
from dape_jax.models import Transformer
from dape_jax.parallel import partitioning
from dape_jax.training.step import make_eval_step, make_train_step

# SGD compiles faster than AdamW.
OPTIMIZER = optax.sgd(0.1)


class Tiny(nn.Module):
  """Classifies tokens from their ids and positions; fast to compile."""

  dropout: float = 0.0

  @nn.compact
  def __call__(self, tokens, segment_ids=None, positions=None):
    x_BxTxD = nn.Embed(3, 16, embedding_init=nn.initializers.normal(1))(tokens)
    x_BxTxD = nn.Dropout(self.dropout)(
        x_BxTxD, deterministic=not self.has_rng("dropout")
    )
    if positions is not None:
      x_BxTxD += jnp.sin(positions / 50)[..., None]
    return nn.Dense(2)(x_BxTxD)


@pytest.fixture(scope="module")
def mesh(make_mesh):
  return make_mesh(1)


@pytest.fixture(scope="module")
def state():
  return jax.jit(lambda: init_state(Tiny(), OPTIMIZER, 0))()


@pytest.fixture(scope="module")
def rows():
  batches = TaskBatches(
      "reverse_string", length=9, batch_size=8, seed=0, lengths_per_batch=4
  )
  rows = batches[0]
  # Rows with different numbers of answers; row 0 gets none.
  assert len(set(rows["loss_weights"].sum(axis=1))) == 4
  rows["loss_weights"][0] = 0
  # Padding gets positions too, so that a row uses all of them.
  rows["positions"][:] = np.arange(rows["positions"].shape[1])
  return rows


def make_step(mesh, dropout=0.0, seed=0, max_position=0):
  return make_train_step(
      Tiny(dropout),
      OPTIMIZER,
      lambda step: 0.1,
      mesh,
      max_position=max_position,
      loss_mean="row",
      seed=seed,
  )


@pytest.fixture(scope="module")
def run(mesh, state, rows):
  """Returns a function: step -> state and metrics after it."""

  def run(step, accumulation=1, at=0):
    batch = partitioning.global_batch(GivenBatches(rows), 0, accumulation, mesh)
    # The step donates its state.
    copy = jax.tree.map(jnp.copy, state)
    copy = dataclasses.replace(copy, step=copy.step + at)
    with jax.set_mesh(mesh):
      return jax.device_get(step(copy, batch))

  return run


@pytest.fixture(scope="module")
def nats_of_rows(state, rows):
  """The sum over each row's answers, in float64, without dropout."""
  model = Tiny(dropout=0.5)
  logits = jax.jit(model.apply)(
      {"params": state.params},
      rows["inputs"],
      rows["segment_ids"],
      rows["positions"],
  )
  logits = np.float64(logits)
  nats = np.log(np.exp(logits).sum(axis=-1))
  nats -= np.take_along_axis(logits, rows["targets"][..., None], -1)[..., 0]
  return (nats * rows["loss_weights"]).sum(axis=1)


def test_row_loss_sums_over_tokens_and_averages_over_rows(
    mesh, run, rows, nats_of_rows
):
  step = make_step(mesh)
  whole, metrics = run(step)
  # The row without answers does not count.
  np.testing.assert_allclose(metrics["loss"], nats_of_rows.sum() / 7, rtol=1e-5)
  assert metrics["tokens"] == rows["loss_weights"].sum()
  for_tokens = nats_of_rows.sum() / rows["loss_weights"].sum()
  assert abs(metrics["loss"] - for_tokens) > 1

  split, split_metrics = run(step, accumulation=4)
  for name, value in metrics.items():
    np.testing.assert_allclose(split_metrics[name], value, rtol=1e-5)
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
      split.params,
      whole.params,
  )


@pytest.mark.parametrize("loss_mean, count", [("row", 7), ("token", None)])
def test_evaluation_counts_like_training_and_has_no_dropout(
    mesh, state, rows, nats_of_rows, loss_mean, count
):
  model = Tiny(dropout=0.5)
  evaluate = make_eval_step(model, mesh, loss_mean=loss_mean)
  batch = partitioning.global_batch(GivenBatches(rows), 0, 2, mesh)
  nats, divisor = evaluate(state.params, batch)
  np.testing.assert_allclose(nats, nats_of_rows.sum(), rtol=1e-5)
  assert divisor == (count or rows["loss_weights"].sum())


def test_dropout_depends_on_seed_and_step_only(mesh, run, nats_of_rows):
  step = make_step(mesh, dropout=0.5)
  first = run(step)
  jax.tree.map(np.testing.assert_array_equal, first, run(step))
  losses = [nats_of_rows.sum() / 7, first[1]["loss"]]
  losses += [run(step, at=at)[1]["loss"] for at in (1, 2)]
  losses.append(run(make_step(mesh, dropout=0.5, seed=1))[1]["loss"])
  assert np.diff(sorted(losses)).min() > 1e-4


def test_random_positions_depend_on_seed_and_step(mesh, run, rows):
  def loss(max_position, seed=0, at=0):
    step = make_step(mesh, seed=seed, max_position=max_position)
    return run(step, at=at)[1]["loss"]

  unchanged = loss(0)
  # Only one sorted sample contains all positions.
  length = rows["inputs"].shape[1]
  np.testing.assert_allclose(loss(length), unchanged, rtol=1e-6)
  losses = [unchanged, loss(500), loss(500, seed=1), loss(500, at=1)]
  assert np.diff(sorted(losses)).min() > 1e-4


def test_dropout_differs_between_rows_tokens_and_layers():
  config = ModelConfig(
      vocab_size=16,
      num_layers=2,
      width=16,
      num_heads=2,
      encoding="nope",
      dropout=0.5,
      dtype="float32",
  )
  model = Transformer(config)
  tokens = np.zeros((4, 6), np.int32)
  params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
  # Each layer adds 2 where it does not drop, and 0 where it does.
  params = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), params)
  params["layers"]["mlp"]["down"]["bias"] += 1
  params["final_norm"]["scale"] += 1
  params["head"]["kernel"] += np.eye(16, dtype=np.float32)
  # NumPy arrays, like the parameters of a checkpoint.
  read = jax.jit(
      lambda key: model.apply({"params": params}, tokens, rngs={"dropout": key})
  )
  logits = np.asarray(read(jax.random.key(0)))
  np.testing.assert_array_equal(read(jax.random.key(0)), logits)
  assert (read(jax.random.key(1)) != logits).any()
  for token in logits.reshape(-1, 16):
    # Dropped by both layers, by one, by none.
    assert len(set(token.round(4))) == 3
  assert len({token.tobytes() for token in logits.reshape(-1, 16)}) == 24
