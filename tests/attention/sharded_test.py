"""Sharded attention matches one device, gradients included."""

import contextlib

import cases
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
    assert_close,
    documents,
    outputs_and_gradients,
    packed,
    plain,
)

import dape_jax
from dape_jax.attention import tiling

GATHERED = (("batch", ("data", "fsdp")), ("length", "context"))
RING = (*GATHERED, ("kv_length", "context"))


@contextlib.contextmanager
def devices(rules, shape=(2, 1, 4)):
  axis = jax.sharding.AxisType.Auto
  mesh = jax.make_mesh(
      shape, ("data", "fsdp", "context"), axis_types=(axis,) * 3
  )
  with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
    yield


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
  monkeypatch.setattr(tiling, "CPU_BLOCKS", (16, 8))
  monkeypatch.setattr(tiling, "CPU_BLOCKS_OF_FOUR", (8, 8))


CASES = {
    "plain": plain(4, 2, 8, 96),
    # Document boundaries lie within the devices' shards.
    "packed": packed(documents(37, 1, 42, padding=16), documents(96)),
    "window": plain(2, 2, 8, 48, window=7),
    "both_directions": plain(2, 2, 8, 40, causal=False),
}
COMBINATIONS = [
    ("dape_kerple_log", "plain"),
    ("dape_v2_fire", "packed"),
    ("rope", "packed"),
    ("dape_v2_kerple_log", "window"),
    ("dape_fire", "both_directions"),
]


@pytest.mark.parametrize("name, case", COMBINATIONS)
def test_gathered_and_ring_equal_one_device(name, case):
  case = CASES[case]
  with jax.enable_x64(True):
    one = outputs_and_gradients(None, name, case, jnp.float64)
    for rules in (GATHERED, RING):
      with devices(rules):
        many = outputs_and_gradients(None, name, case, jnp.float64)
      assert_close(many, one, 1e-11)


def _features_case(name):
  """Returns a function: a scalar of attention and its gradients."""
  encoding = dape_jax.encodings.make(name, num_heads=2)
  x = jax.random.normal(jax.random.key(3), (2, 32, 16))
  qkv = cases.qkv(4, 2, 32, 2, 8)
  ids = jnp.asarray(np.repeat([[1] * 20 + [2] * 12], 2, axis=0))
  positions = jnp.concatenate([jnp.arange(20), jnp.arange(12)])
  variables = encoding.init(jax.random.key(0), x, *qkv, method=dape_jax.attend)

  def total(variables, x, qkv):
    out = encoding.apply(
        variables,
        x,
        *qkv,
        positions=positions,
        segment_ids=ids,
        method=dape_jax.attend,
    )
    return jnp.sum(jnp.sin(3 * out))

  def run():
    # jit's cache key does not include the logical axis rules.
    fresh = jax.jit(jax.value_and_grad(lambda *a: total(*a), (0, 1, 2)))
    return fresh(variables, x, qkv)

  return run


@pytest.mark.parametrize("name", ["fox", "dape_v2_fox"])
def test_token_features_travel_with_the_keys(name):
  run = _features_case(name)
  one = run()
  for rules in (GATHERED, RING):
    with devices(rules):
      assert_close(run(), one, 2e-5)


def test_row_scope_is_gathered_and_refused_in_a_ring():
  run = _features_case("cope")
  one = run()
  with devices(GATHERED):
    assert_close(run(), one, 2e-5)
  with devices(RING), pytest.raises(NotImplementedError, match="whole rows"):
    run()


def test_a_ring_never_holds_all_keys():
  encoding, score_mod = cases.make("dape_kerple_log", 2)
  qkv = cases.qkv(0, 2, 64, 2, 8)
  texts = {}
  for rules in (GATHERED, RING):
    with devices(rules):
      spec = jax.P(("data", "fsdp"), "context")
      attend = jax.jit(
          lambda *qkv: cases.attend(encoding, score_mod, *qkv, jnp.arange(64)),
          in_shardings=spec,
          out_shardings=spec,
      )
      texts[rules] = attend.lower(*qkv).compile().as_text()
  assert "all-gather" in texts[GATHERED]
  assert "collective-permute" not in texts[GATHERED]
  assert "collective-permute" in texts[RING]
  assert "f32[1,64,2,8]" in texts[GATHERED]
  assert "f32[1,64,2,8]" not in texts[RING]


def test_indivisible_length_is_left_to_the_compiler():
  case = plain(2, 2, 8, 30)
  one = outputs_and_gradients(None, "dape_kerple_log", case, jnp.float32)
  with devices(RING):
    many = outputs_and_gradients(None, "dape_kerple_log", case, jnp.float32)
  assert_close(many, one, 1e-4)
