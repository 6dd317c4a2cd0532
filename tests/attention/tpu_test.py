"""The TPU kernels, interpreted on the CPU and compiled by the TPU compiler.

Interpretation checks the numbers, and `InterpretParams(detect_races=True)`
checks for races between asynchronous copies. Neither measures time.
"""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tpu_compiler
from attention_cases import (
    CASES,
    assert_close,
    interpret_kernels,
    outputs_and_gradients,
    plain,
)
from jax.experimental.pallas import tpu as pltpu

import dape_jax
from dape_jax.attention import api

V2 = "dape_v2_kerple_log"
MORE_CASES = CASES | {
    "length_150": plain(1, 2, 8, 150),
    "grouped": plain(2, 4, 8, 40, kv_heads=2),
    "both_directions": plain(1, 2, 8, 150, causal=False),
    "wide_blocks": plain(1, 2, 16, 1100),
}


@pytest.fixture
def on_tpu(monkeypatch):
  """`attention` dispatches as on a TPU and interprets the kernels."""
  interpret_kernels(monkeypatch)


@pytest.mark.parametrize(
    "name, case",
    [
        *((n, "grouped") for n in ("rope", "t5", "dape_sandwich", V2)),
        *(
            ("dape_kerple_log", c)
            for c in ("packed_window", "packed", "cached")
        ),
        *((V2, c) for c in ("packed_window", "cached", "both_directions")),
        *((n, "length_150") for n in ("nope", "fire", "dape_fire", V2)),
        ("dape_alibi", "both_directions"),
        ("kerple_log", "window"),
        ("dape_kerple_log", "length_129_of_dim_128"),
        ("dape_kerple_log", "length_128_of_12_heads"),
        ("kerple_log", "wide_blocks"),
    ],
)
def test_matches_float64(name, case, on_tpu):
  case = MORE_CASES[case]
  ours = outputs_and_gradients("pallas_tpu", name, case, jnp.float32)
  with jax.enable_x64(True):
    expected = outputs_and_gradients("reference", name, case, jnp.float64)
  assert_close(ours, expected, 1e-3)


@pytest.mark.parametrize(
    "name", ["kerple_log", "dape_kerple_log", "dape_nope", V2, "dape_v2_rope"]
)
def test_bfloat16(name, on_tpu):
  """Only the operands of matrix products are rounded."""
  case = MORE_CASES["length_150"]
  ours = outputs_and_gradients("pallas_tpu", name, case, jnp.bfloat16)
  with jax.enable_x64(True):
    expected = outputs_and_gradients("reference", name, case, jnp.float64)
  assert_close(ours["out"], expected["out"], 0.02)
  assert_close(ours, expected, 0.15)


@pytest.mark.parametrize("name", ["dape_alibi", "dape_v2_alibi"])
def test_large_bias_is_not_rounded_to_bfloat16(name, on_tpu):
  """Rounding a bias of hundreds (spacing 1 or 2) causes errors above 0.1."""
  case = plain(1, 2, 8, 500)
  ours = outputs_and_gradients("pallas_tpu", name, case, jnp.bfloat16)
  expected = outputs_and_gradients("reference", name, case, jnp.float32)
  assert_close(ours["out"], expected["out"], 0.02)


@pytest.mark.parametrize("name", ["dape_kerple_log", V2])
def test_contents_of_padding_have_no_effect(name, on_tpu):
  """Outputs and gradients are bit for bit the same."""
  encoding, score_mod = cases.make(name, 2)
  qkv = cases.qkv(0, 1, 40, 2, 8)
  ids = jnp.int32(jnp.arange(40) < 30)[None]

  @jax.jit
  @functools.partial(jax.grad, argnums=(0, 1), has_aux=True)
  def gradient(params, qkv):
    out = cases.attend(
        encoding,
        score_mod.replace(params=params),
        *qkv,
        jnp.arange(40),
        q_segment_ids=ids,
        kv_segment_ids=ids,
    )
    return jnp.sum(jnp.sin(out)), out

  clean = gradient(score_mod.params, qkv)
  dirty = gradient(
      score_mod.params, tuple(x.at[:, 30:].set(jnp.nan) for x in qkv)
  )
  jax.tree.map(np.testing.assert_array_equal, clean, dirty)
  np.testing.assert_array_equal(clean[1][:, 30:], 0)


@pytest.mark.parametrize("name", ["dape_kerple_log", V2])
def test_vmap_and_remat(name, on_tpu):
  encoding, score_mod = cases.make(name, 2)
  qkv = cases.qkv(0, 2, 24, 2, 8)

  def total(params, qkv):
    mod = score_mod.replace(params=params)
    out = cases.attend(encoding, mod, *qkv, jnp.arange(24))
    return jnp.sum(jnp.sin(out))

  once = jax.jit(jax.grad(total))(score_mod.params, qkv)
  again = jax.jit(jax.grad(jax.checkpoint(total)))(score_mod.params, qkv)
  each = jax.jit(jax.vmap(jax.grad(total), (None, 0)))(
      score_mod.params, jax.tree.map(lambda x: x[:, None], qkv)
  )
  for other in (again, jax.tree.map(lambda x: x.sum(0), each)):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=5e-5), once, other
    )


@pytest.mark.parametrize("name", ["dape_kerple_log", V2])
def test_mesh_shards_the_batch(name, on_tpu):
  encoding, score_mod = cases.make(name, 2)
  qkv = cases.qkv(0, 2, 24, 2, 8)

  def total(params, qkv):
    mod = score_mod.replace(params=params)
    out = cases.attend(encoding, mod, *qkv, jnp.arange(24))
    return jnp.sum(jnp.sin(out))

  one = jax.jit(jax.grad(total, (0, 1)))(score_mod.params, qkv)
  axis = jax.sharding.AxisType.Auto
  mesh = jax.make_mesh((2,), ("data",), axis_types=(axis,))
  with jax.set_mesh(mesh):
    qkv = jax.device_put(qkv, jax.NamedSharding(mesh, jax.P("data")))
    program = jax.jit(jax.grad(total, (0, 1))).lower(score_mod.params, qkv)
    program = program.compile()
    two = program(score_mod.params, qkv)
  assert "all-gather" not in program.as_text()
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=5e-5), one, two
  )


@pytest.mark.parametrize("name", ["dape_kerple_log", V2])
def test_no_races_between_copies(name, monkeypatch, capfd):
  params = pltpu.InterpretParams(detect_races=True)
  interpret_kernels(monkeypatch, params)
  case = plain(1, 1, 8, 150)
  outputs_and_gradients("pallas_tpu", name, case, jnp.float32)
  assert "RACE" not in capfd.readouterr().out.upper()


def test_unsupported_calls_fall_back_to_chunked_and_log_once(
    on_tpu, monkeypatch
):
  logged = []
  monkeypatch.setattr(api.logging, "info", logged.append)
  api._log_once.cache_clear()
  x = jnp.ones((1, 2, 1, 4))
  arguments = dict(q_positions=jnp.arange(2), kv_positions=jnp.arange(2))
  for _ in range(2):
    dape_jax.attention(x, x, x, **arguments)
  [message] = logged
  assert "'chunked' instead of 'pallas_tpu': 2 queries" in message
  with pytest.raises(NotImplementedError, match="'pallas_tpu': 2 queries"):
    dape_jax.attention(x, x, x, implementation="pallas_tpu", **arguments)


def test_requires_a_tpu():
  x = jnp.ones((1, 16, 1, 4))
  with pytest.raises(NotImplementedError, match="for TPUs, not for cpu"):
    dape_jax.attention(
        x,
        x,
        x,
        q_positions=jnp.arange(16),
        kv_positions=jnp.arange(16),
        implementation="pallas_tpu",
    )


COMPILE = """
import jax, jax.numpy as jnp
from jax.experimental import topologies
from dape_jax import attention, encodings

topology = topologies.get_topology_desc({topology!r}, platform="tpu")
axis = jax.sharding.AxisType.Auto
mesh = jax.sharding.Mesh(topology.devices[:1], ("data",), axis_types=(axis,))
for name, heads, head_dim in {shapes!r}:
  encoding = encodings.make(name, num_heads=heads)
  score_mod = jax.eval_shape(
      lambda: encoding.init_with_output(jax.random.key(0), method="score_mod")
  )[0]
  positions = jax.ShapeDtypeStruct((300,), jnp.int32)
  x = jax.ShapeDtypeStruct((2, 300, heads, head_dim), jnp.bfloat16)
  def total(score_mod, q, k, v, positions):
    out = attention(q, k, v, score_mod, q_positions=positions,
                    kv_positions=positions, implementation="pallas_tpu")
    return jnp.sum(out.astype(jnp.float32) ** 2)
  with jax.set_mesh(mesh):
    sharding = jax.NamedSharding(mesh, jax.P())
    arguments = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        (score_mod, x, x, x, positions))
    program = jax.jit(jax.value_and_grad(total, (0, 1, 2, 3)))
    text = program.lower(*arguments).compile().as_text()
    print(name, heads, head_dim, text.count("tpu_custom_call"))
"""


@tpu_compiler.needed
@pytest.mark.parametrize(
    "topology, shapes",
    [
        (
            "v5e:2x2",
            [
                ("dape_kerple_log", 12, 64),
                ("dape_fire", 16, 80),
                (V2, 12, 64),
                ("fire", 12, 128),
            ],
        ),
        pytest.param(
            "v5p:2x2x1",
            [("dape_kerple_log", 32, 80), (V2, 12, 64)],
            marks=pytest.mark.soak,
        ),
        pytest.param(
            "v5p:2x2x1", [("dape_alibi", 12, 128)], marks=pytest.mark.soak
        ),
        pytest.param(
            "v6e:2x2",
            [("dape_kerple_log", 16, 128), (V2, 12, 64)],
            marks=pytest.mark.soak,
        ),
    ],
)
def test_compiles_forward_and_backward(topology, shapes):
  program = COMPILE.format(topology=topology, shapes=shapes)
  lines = tpu_compiler.output_of(program).splitlines()
  assert len(lines) == len(shapes)
  for line in lines:
    assert int(line.split()[-1]) >= 2, line  # a forward and a backward kernel
