"""Sinusoidal and learned positions, and errors beyond the table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tpu_compiler
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import dape_jax
from dape_jax.encodings.absolute import Learned, Sinusoidal, sinusoids

LEARNED = Learned(num_heads=1, max_length=16)
TABLE = jnp.asarray(np.random.default_rng(0).normal(size=(16, 4)), jnp.float32)
INSIDE = np.arange(16, dtype=np.int32).reshape(8, 2)
BEYOND = np.where(INSIDE == 7, 16, INSIDE)
MESSAGE = "position 16: a learned table of max_length=16 has rows for 0 to 15"


def embedded(positions, table=TABLE, x=None):
  if x is None:
    x = jnp.zeros((1 if positions.ndim == 1 else len(positions), 2, 4))
  variables = {"params": {"table": table}}
  return LEARNED.apply(variables, x, positions, method="embed")


def test_sinusoids_interleave_sine_and_cosine():
  positions = np.array([[0, 1, 2, 511], [4000, 65_536, 2**20 - 1, 2**20]])
  angles = positions[..., None] * 10000.0 ** (-np.arange(0, 6, 2) / 6)
  expected = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(2, 4, 6)
  x = np.random.default_rng(0).normal(size=(2, 4, 6)).astype(np.float32)
  encoding = Sinusoidal(num_heads=3)
  out = encoding.embed(jnp.array(x), jnp.array(positions))
  np.testing.assert_allclose(out[0], x[0] + expected[0], atol=1e-6)
  np.testing.assert_allclose(out, x + expected, atol=1e-3)
  for_all_rows = encoding.embed(jnp.array(x), jnp.array(positions[0]))
  np.testing.assert_allclose(for_all_rows, x + expected[:1], atol=1e-6)
  with jax.enable_x64(True):
    exact = sinusoids(jnp.array(positions), 6, jnp.float64)
    np.testing.assert_allclose(exact, expected, atol=1e-9)


def test_distant_sinusoids_depend_on_distance_only():
  near, far = jnp.array([0, 3, 700]), jnp.array([0, 3, 700]) + 1_000_000
  products = [
      jnp.matmul(s, s.T) for s in (sinusoids(p, 64) for p in (near, far))
  ]
  np.testing.assert_allclose(products[0], products[1], atol=5e-5)


def test_sum_is_rounded_once_to_the_dtype_of_the_tokens():
  x = jnp.full((1, 1, 4), 0.003, jnp.bfloat16)
  out = Sinusoidal(num_heads=1).embed(x, jnp.array([1234]))
  assert out.dtype == jnp.bfloat16
  expected = x.astype(jnp.float32) + sinusoids(jnp.array([[1234]]), 4)
  np.testing.assert_array_equal(out, expected.astype(jnp.bfloat16))


def test_odd_width_is_rejected():
  with pytest.raises(dape_jax.ConfigError, match="width=5: must be even"):
    Sinusoidal(num_heads=1).embed(jnp.zeros((1, 2, 5)), jnp.arange(2))


def test_learned_table():
  encoding = Learned(num_heads=12, max_length=300)
  x = jnp.ones((2, 3, 64))
  variables = encoding.init(jax.random.key(0), x, jnp.arange(3), method="embed")
  table = variables["params"]["table"]
  assert table.shape == (300, 64) and table.dtype == jnp.float32
  np.testing.assert_allclose(jnp.std(table), 0.02, rtol=0.03)
  np.testing.assert_allclose(jnp.mean(table), 0, atol=1e-3)
  positions = jnp.array([[0, 299, 5], [1, 0, 1]])
  out = encoding.apply(variables, x, positions, method="embed")
  np.testing.assert_allclose(out, 1 + table[positions], rtol=1e-6)
  assert encoding.is_absolute and Sinusoidal(1).is_absolute
  with pytest.raises(dape_jax.ConfigError, match="max_length=0: must be 1"):
    Learned(num_heads=1, max_length=0)


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_concrete_positions_beyond_the_limit_raise_at_once(array):
  np.testing.assert_array_equal(embedded(array(INSIDE)), TABLE[INSIDE])
  with pytest.raises(dape_jax.ConfigError, match=MESSAGE):
    embedded(array(BEYOND))
  with pytest.raises(dape_jax.ConfigError, match="position -1: "):
    embedded(array([[-1, 0]]))
  # Constants of a traced program are concrete, too.
  known = array(BEYOND)
  with pytest.raises(dape_jax.ConfigError, match="larger max_length"):
    jax.eval_shape(lambda table: embedded(known, table), TABLE)


def total(table, positions):
  return jnp.sum(embedded(positions, table) ** 2)


def scanned(positions):
  """Gradient through a scan over rows, each layer rematerialized."""
  step = jax.checkpoint(lambda c, row: (c + 1e-3 * total(c * TABLE, row), None))
  return jax.grad(lambda c: jax.lax.scan(step, c, positions)[0])(1.0)


def in_vmap(positions):
  return jax.vmap(lambda row: embedded(row)[0])(positions)


def inside_shard_map(positions):
  spec = PartitionSpec("data")
  return jax.shard_map(embedded, in_specs=spec, out_specs=spec)(positions)


def gradient(positions):
  return jax.grad(total)(TABLE, positions)


PROGRAMS = [embedded, gradient, scanned, in_vmap]


@pytest.mark.parametrize("program", PROGRAMS)
def test_traced_positions_beyond_the_limit_raise(program):
  program = jax.jit(program)
  assert np.isfinite(program(INSIDE)).all()
  for outside in (BEYOND, np.where(INSIDE == 7, -1, INSIDE)):
    # A failed call leaves no state: each call raises its own error.
    message = MESSAGE if outside is BEYOND else "position -1: "
    with pytest.raises(Exception, match=message):
      jax.block_until_ready(program(outside))
  np.testing.assert_array_equal(embedded(INSIDE), TABLE[INSIDE])


def make_mesh():
  shape, names = (4, 2), ("data", "model")
  return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * 2)


@pytest.mark.parametrize("program", [*PROGRAMS, inside_shard_map])
def test_traced_positions_beyond_the_limit_raise_on_eight_devices(program):
  mesh = make_mesh()
  rows = NamedSharding(mesh, PartitionSpec("data"))
  with jax.set_mesh(mesh):
    program = jax.jit(program)
    assert np.isfinite(program(jax.device_put(INSIDE, rows))).all()
    with pytest.raises(Exception, match=MESSAGE):
      jax.block_until_ready(program(jax.device_put(BEYOND, rows)))
    assert np.isfinite(program(jax.device_put(INSIDE, rows))).all()


def test_mesh_comes_from_the_arrays_if_none_is_set():
  rows = NamedSharding(make_mesh(), PartitionSpec("data"))
  with pytest.raises(Exception, match=MESSAGE):
    jax.block_until_ready(jax.jit(embedded)(jax.device_put(BEYOND, rows)))

  @jax.jit
  def embedded_in_order(x, first):
    return embedded(first + jnp.arange(2, dtype=jnp.int32), TABLE, x)

  x = jax.device_put(jnp.zeros((8, 2, 4)), rows)
  np.testing.assert_array_equal(embedded_in_order(x, 14)[5], TABLE[14:])
  with pytest.raises(Exception, match=MESSAGE):
    jax.block_until_ready(embedded_in_order(x, 15))


TPU_PROGRAM = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec
from dape_jax.encodings.absolute import Learned
from dape_jax.encodings.xpos import XPos

topology = topologies.get_topology_desc("v5e:2x2", platform="tpu")
axis = jax.sharding.AxisType.Auto
mesh = jax.sharding.Mesh(np.array(topology.devices), ("data",), axis_types=(axis,))

def loss(table, positions):
  x = jnp.zeros((*positions.shape, 128), jnp.bfloat16)
  variables = {"params": {"table": table}}
  x = Learned(1, 16).apply(variables, x, positions, method="embed")
  def layer(x, _):
    heads = x.reshape(*positions.shape, 2, 64)
    query, key = XPos(2).rotate(heads, heads, positions, positions)
    return x + (query * key).reshape(x.shape), None
  x, _ = jax.lax.scan(jax.checkpoint(layer), x, None, length=3)
  return jnp.sum(x.astype(jnp.float32) ** 2)

with jax.set_mesh(mesh):
  spec = lambda *axes: NamedSharding(mesh, PartitionSpec(*axes))
  shape = jax.ShapeDtypeStruct
  table = shape((16, 128), jnp.float32, sharding=spec())
  positions = shape((8, 32), jnp.int32, sharding=spec("data"))
  compiled = jax.jit(jax.grad(loss)).lower(table, positions).compile()
print("callbacks", compiled.as_text().count("is_host_transfer=true"))
"""


@tpu_compiler.needed
def test_compiles_for_tpu_without_host_callbacks():
  assert tpu_compiler.output_of(TPU_PROGRAM).split()[-1] == "0"
