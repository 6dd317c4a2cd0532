"""Training on any mesh equals training on one device."""

import jax
import numpy as np
import pytest
from given_batches import GivenBatches

from dape_jax.config import MeshConfig
from dape_jax.data import TrainBatches
from dape_jax.errors import ConfigError
from dape_jax.parallel import partitioning
from dape_jax.training.run import Program

_MESH = dict(data=2, fsdp=2, context=2)


@pytest.fixture(autouse=True)
def split_small_arrays(monkeypatch):
  monkeypatch.setattr(partitioning, "_MIN_SPLIT_SIZE", 64)


@pytest.fixture(scope="module")
def losses(tiny_corpus, make_config):
  """Returns a function: encoding, mesh -> losses and state after 20 steps."""

  def losses(encoding, mesh):
    config = make_config({"model.encoding": encoding, "model.num_layers": 1})
    program = Program(config, mesh)
    batches = TrainBatches(
        [tiny_corpus.split("train")], length=32, batch_size=8, seed=0
    )
    history = []
    with jax.set_mesh(mesh):
      state = program.new_state()
      for step in range(20):
        batch = partitioning.global_batch(batches, step, 1, mesh)
        state, metrics = program.train_step(state, batch)
        history.append(float(metrics["loss"]))
    return history, state

  return losses


# attention/sharded_test compares gathered keys with a ring.
@pytest.mark.parametrize(
    "encoding, ring",
    [
        ("dape_kerple_log", True),
        ("rope", False),
        pytest.param("dape_v2_fire", False, marks=pytest.mark.soak),
        pytest.param("fox", True, marks=pytest.mark.soak),
    ],
)
def test_mesh_of_data_fsdp_and_context_equals_one_device(
    encoding, ring, losses
):
  one = partitioning.make_mesh(devices=jax.devices()[:1])
  expected, expected_state = losses(encoding, one)
  assert expected[-1] < expected[0] - 0.3
  mesh = partitioning.make_mesh(MeshConfig(**_MESH, ring=ring))
  actual, state = losses(encoding, mesh)
  np.testing.assert_allclose(actual, expected, atol=1e-5)
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3),
      state.params,
      jax.device_get(expected_state.params),
  )
  jax.tree.map(
      lambda x, s: np.testing.assert_(x.sharding.is_equivalent_to(s, x.ndim)),
      state,
      partitioning.state_sharding(state, mesh),
  )


def test_large_arrays_are_split_but_not_along_layers():
  mesh = partitioning.make_mesh(MeshConfig(fsdp=4))
  shape = jax.ShapeDtypeStruct
  specs = jax.tree.map(
      lambda s: s.spec,
      partitioning.state_sharding(
          {
              "layers": {"up": shape((64, 8, 32), "float32")},
              "head": shape((8, 64), "float32"),
              "odd": shape((9, 63), "float32"),
              "small": shape((4,), "float32"),
          },
          mesh,
      ),
  )
  assert specs == {
      "layers": {"up": jax.P(None, None, "fsdp")},
      "head": jax.P(None, "fsdp"),
      "odd": jax.P(),
      "small": jax.P(),
  }


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("mesh", [{}, dict(fsdp=4), _MESH, dict(context=8)])
def test_batch_keeps_its_order_on_any_mesh(accumulation, mesh):
  rows = {"inputs": np.arange(16 * 8, dtype=np.int32).reshape(16, 8)}
  mesh = partitioning.make_mesh(MeshConfig(**mesh))
  batch = partitioning.global_batch(GivenBatches(rows), 0, accumulation, mesh)
  inputs = batch["inputs"]
  np.testing.assert_array_equal(
      inputs, rows["inputs"].reshape(accumulation, -1, 8)
  )
  size = 16 * 8 // mesh.size
  assert {s.data.size for s in inputs.addressable_shards} == {size}


def test_meshes_that_do_not_fit_are_refused(make_config):
  with pytest.raises(ConfigError, match=r"fsdp=3 .* do not make 8 devices"):
    partitioning.make_mesh(MeshConfig(fsdp=3))
  with pytest.raises(ConfigError, match=r"data=4 .* do not make 8 devices"):
    partitioning.make_mesh(MeshConfig(data=4))
  with pytest.raises(ConfigError, match=r"config.mesh.context=5: does not div"):
    make_config({"mesh.context": 5})
  with pytest.raises(
      ConfigError, match=r"config.mesh.ring=True: requires rows"
  ):
    MeshConfig(ring=True)
  ring = {"mesh.context": 8, "mesh.ring": True}
  mesh = partitioning.make_mesh(MeshConfig(context=8, ring=True))
  with pytest.raises(
      ConfigError, match=r'ring: encoding "cope" needs all keys'
  ):
    Program(make_config(ring | {"model.encoding": "cope"}), mesh)
  wide = {"model.encoding": "dape_v2_fire", "data.length": 8}
  with pytest.raises(ConfigError, match=r"context: .* a device holds 1 tokens"):
    Program(make_config(ring | wide), mesh)
  mesh = partitioning.make_mesh(MeshConfig(fsdp=2))
  config = make_config({"train.batch_size": 24, "train.accumulation": 2})
  with pytest.raises(
      ConfigError, match=r"config.train.batch_size=24.*multiple of 16"
  ):
    partitioning.check_batch(config, mesh)
