"""Reading a long text compiles for TPU, by the real compiler, without a TPU."""

import tpu_compiler

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from dape_jax.config import ModelConfig
from dape_jax.evaluation import perplexity
from dape_jax.models import Transformer

topology = topologies.get_topology_desc("v5e:2x2", platform="tpu")
mesh = jax.sharding.Mesh(
    np.array(topology.devices[:1]), ("chip",),
    axis_types=(jax.sharding.AxisType.Auto,))
place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
on_chip = lambda tree: jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree)
model = Transformer(ModelConfig(
    num_layers=2, width=256, num_heads=4, encoding="dape_kerple_log"))
tokens = jax.ShapeDtypeStruct((1, 128), jnp.int32)
params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
cache = jax.eval_shape(lambda: model.empty_cache(1, 4096))
with jax.set_mesh(mesh):
  step = perplexity.make_step(model)
  compiled = step.lower(*on_chip((params, cache, *3 * [tokens]))).compile()
# The kernel, and not tiles of XLA.
assert "tpu_custom_call" in compiled.as_text()
memory = compiled.memory_analysis()
# The cache is changed in place.
assert memory.alias_size_in_bytes >= 2 * 2 * 4096 * 256 * 2
print("bytes", memory.temp_size_in_bytes)
"""


@tpu_compiler.needed
def test_reading_a_chunk_compiles_for_v5e():
  assert int(tpu_compiler.output_of(PROGRAM).split()[-1]) < 2**27
