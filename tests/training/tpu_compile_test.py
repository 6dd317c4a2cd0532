"""The training step compiles for TPU, by the real compiler, without a TPU."""

import tpu_compiler

PROGRAM = """
import functools
import jax, jax.numpy as jnp
from jax.experimental import topologies
from dape_jax.config import ModelConfig, OptimizerConfig
from dape_jax.models import Transformer
from dape_jax.training import optimizer, partitioning, state, step

topology = topologies.get_topology_desc("v5e:2x2", platform="tpu")
mesh = partitioning.make_mesh(devices=topology.devices)
model = Transformer(ModelConfig(
    num_layers=2, width=256, num_heads=4, encoding="dape_kerple_log", remat="full"))
adamw = optimizer.make_optimizer(OptimizerConfig(), 1000)
schedule = optimizer.learning_rate_schedule(OptimizerConfig(), 1000)
with jax.set_mesh(mesh):
  abstract = lambda x, sharding: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=sharding)
  initial = jax.eval_shape(functools.partial(state.init_state, model, adamw, 0))
  initial = jax.tree.map(
      lambda x: abstract(x, partitioning.replicated(mesh)), initial)
  dtypes = dict(inputs=jnp.int32, targets=jnp.int32, segment_ids=jnp.int32,
                positions=jnp.int32, loss_weights=jnp.float32)
  batch = {name: abstract(jax.ShapeDtypeStruct((1, 8, 128), dtype),
                          partitioning.batch_sharding(mesh))
           for name, dtype in dtypes.items()}
  train_step = step.make_train_step(model, adamw, schedule, mesh)
  compiled = train_step.lower(initial, batch).compile()
# Each chip works on its own windows: only gradients cross between chips.
assert "all-gather" not in compiled.as_text()
assert "all-reduce" in compiled.as_text()
print("bytes", compiled.memory_analysis().temp_size_in_bytes)
"""


@tpu_compiler.needed
def test_train_step_compiles_for_v5e():
  assert int(tpu_compiler.output_of(PROGRAM).split()[-1]) < 2**30
