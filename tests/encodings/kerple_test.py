"""KERPLE's variants against plain float64 NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dape_jax
from dape_jax.encodings import kerple, kerple_power_family
from dape_jax.encodings.kerple import Kerple3ParaLog, KerpleLog, projected
from dape_jax.encodings.kerple_power_family import (
    Kerple1ParaWht,
    Kerple2ParaBias,
    Kerple2ParaWht,
    Kerple3ParaBias,
    KerpleBiasWht,
    KerplePower,
)

# (weight, bias) of distances and the parameters in order.
FORMULAS = {
    KerpleLog: lambda r, r1, r2: (1, -r1 * np.log(1 + r2 * r)),
    KerplePower: lambda r, r1, r2: (1, -r1 * r**r2),
    Kerple3ParaLog: lambda r, r1, r2, r3: (1, -r1 * np.log(1 + r2 * r**r3)),
    KerpleBiasWht: lambda r, r1, r2, r3, r4: (
        np.exp(-r3 * r**r4),
        -r1 * r**r2,
    ),
    Kerple2ParaBias: lambda r, r1, r2: (1, r1 * np.exp(-r2 * r**2)),
    Kerple3ParaBias: lambda r, r1, r2, r3: (1, r1 * np.exp(-r2 * r**r3)),
    Kerple1ParaWht: lambda r, r1: (np.exp(-r1 * r**2), 0),
    Kerple2ParaWht: lambda r, r1, r2: (np.exp(-r1 * r**r2), 0),
}
# Upper bounds of the initial values.
INITIAL = {
    KerpleLog: {"r1": 2.0, "r2": 1.0},
    KerplePower: {"r1": 1.0, "r2": 2.0},
    Kerple3ParaLog: {"r1": 2.0, "r2": 1.0, "r3": 2.0},
    KerpleBiasWht: {"r1": 1.0, "r2": 2.0, "r3": 1.0, "r4": 2.0},
    Kerple2ParaBias: {"r1": 2.0, "r2": 1.0},
    Kerple3ParaBias: {"r1": 2.0, "r2": 1.0, "r3": 2.0},
    Kerple1ParaWht: {"r1": 1.0},
    Kerple2ParaWht: {"r1": 1.0, "r2": 2.0},
}
EXPONENTS = {
    KerplePower: ["r2"],
    Kerple3ParaLog: ["r3"],
    KerpleBiasWht: ["r2", "r4"],
    Kerple3ParaBias: ["r3"],
    Kerple2ParaWht: ["r2"],
}
VARIANTS = pytest.mark.parametrize("cls", FORMULAS, ids=lambda c: c.__name__)

HEADS = 3
Q_POSITIONS = np.array([0, 1, 7, 2**20, 2**30])
KV_POSITIONS = np.array([0, 1, 3, 7, 40, 2**20 - 300, 2**20])
DISTANCES = np.abs(Q_POSITIONS[:, None] - KV_POSITIONS)[None].astype(np.float64)
AFTER = (Q_POSITIONS[:, None] < KV_POSITIONS)[None]
TILE = dape_jax.Tile(
    Q_POSITIONS.astype(np.int32)[:, None],
    KV_POSITIONS.astype(np.int32)[None, :],
)


def draw(names, seed, low, high):
  rng = np.random.default_rng(seed)
  return {
      name: rng.uniform(low, high, HEADS).astype(np.float32) for name in names
  }


@functools.cache
def forward_and_gradient(cls, two_sided):
  """Returns (params, scores, cotangent) -> scores, bias or None, gradients."""
  encoding = cls(num_heads=HEADS, two_sided=two_sided)

  @jax.jit
  def run(params, scores, cotangent):
    def modified(params):
      score_mod = encoding.apply({"params": params}, method="score_mod")
      bias = score_mod.function.bias(score_mod.params, TILE, jnp.float32)
      return score_mod.apply(score_mod.params, scores, TILE), bias

    out, vjp, bias = jax.vjp(modified, params, has_aux=True)
    return out, bias, vjp(cotangent)[0]

  return run


def expected(cls, params, suffix=""):
  columns = [
      np.float64(params[name + suffix])[:, None, None] for name in INITIAL[cls]
  ]
  return FORMULAS[cls](DISTANCES, *columns)


SCORES = np.random.default_rng(0).normal(size=(HEADS, *DISTANCES.shape[1:]))
SCORES = SCORES.astype(np.float32)


@VARIANTS
def test_formula_on_both_sides_of_the_query(cls):
  names = list(INITIAL[cls])
  both = [*names, *[name + "_after" for name in names]]
  params = draw(both, 1, 0.05, 1.9)
  one_side = {name: params[name] for name in names}

  for two_sided in (False, True):
    weight, bias = expected(cls, params)
    if two_sided:
      weight_after, bias_after = expected(cls, params, "_after")
      weight = np.where(AFTER, weight_after, weight)
      bias = np.where(AFTER, bias_after, bias)
    run = forward_and_gradient(cls, two_sided)
    out, shown, gradient = run(
        params if two_sided else one_side, SCORES, np.ones_like(SCORES)
    )
    np.testing.assert_allclose(
        out, weight * np.float64(SCORES) + bias, rtol=3e-5, atol=1e-6
    )
    assert all(np.isfinite(x).all() for x in gradient.values())
    if shown is None:
      assert not np.any(bias)
    else:
      np.testing.assert_allclose(shown, bias, rtol=3e-5, atol=1e-6)


@VARIANTS
def test_gradients_against_differences(cls):
  params = draw(INITIAL[cls], 2, 0.2, 1.5)
  near = np.where(
      DISTANCES < 100, np.random.default_rng(3).normal(size=SCORES.shape), 0
  )
  *_, gradient = forward_and_gradient(cls, False)(
      params, SCORES, near.astype(np.float32)
  )
  for name in params:
    step = 1e-6

    def total(sign, name=name, step=step):
      moved = {k: np.float64(v) for k, v in params.items()}
      moved[name] = moved[name] + sign * step
      weight, bias = expected(cls, moved)
      out = weight * np.float64(SCORES) + bias
      return (out * near).sum(axis=(1, 2))

    difference = (total(1) - total(-1)) / (2 * step)
    np.testing.assert_allclose(gradient[name], difference, rtol=2e-4, atol=2e-4)


@VARIANTS
def test_clamps_pass_the_gradient_through(cls):
  run = forward_and_gradient(cls, False)
  cotangent = (DISTANCES < 100) * np.ones_like(SCORES)
  highest = {name: 2.0 for name in EXPONENTS.get(cls, [])}
  for outside, inside in ((-0.3, 0.01), (2.6, 2.0)):
    wild = {name: np.full(HEADS, outside, np.float32) for name in INITIAL[cls]}
    tame = {
        name: np.full(
            HEADS, inside if inside < 1 else highest.get(name, 2.6), np.float32
        )
        for name in INITIAL[cls]
    }
    for ours, theirs in zip(
        jax.tree.leaves(run(wild, SCORES, cotangent)),
        jax.tree.leaves(run(tame, SCORES, cotangent)),
    ):
      np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)


def test_projected_at_both_ends():
  x = jnp.array([-1.0, 0.5, 7.0])
  values, gradient = jax.jvp(
      lambda x: projected(x, 0.01, 2.0), (x,), (jnp.ones(3),)
  )
  np.testing.assert_allclose(values, [0.01, 0.5, 2.0], rtol=1e-6)
  np.testing.assert_array_equal(gradient, [1, 1, 1])


@VARIANTS
def test_initial_values_are_in_their_ranges(cls):
  params = {}
  for two_sided in (False, True):
    encoding = cls(num_heads=4000, two_sided=two_sided)
    before = params
    params = encoding.init(jax.random.key(0), method="score_mod")["params"]
    for name, x in params.items():
      top = INITIAL[cls][name.removesuffix("_after")]
      assert 0 <= x.min() < 0.01 * top
      assert 0.99 * top < x.max() < top
  assert len(params) == 2 * len(before)
  for name, x in before.items():
    np.testing.assert_array_equal(x, params[name])


def test_log_bias_of_unclamped_parameters():
  r1, r2 = np.array([[1.5, -2.0, 0.4], [0.3, 0.0, 5.0]], np.float32)
  distances = np.arange(300)[None]
  bias = jax.jit(kerple.kerple_log_bias)(r1, r2, distances)
  r1, r2 = (np.maximum(r, 0.01)[:, None, None] for r in (r1, r2))
  expected = -r1 * np.log(1 + r2 * np.arange(300))
  np.testing.assert_allclose(bias, expected, rtol=2e-6)


def test_additive_variants_are_biases_and_all_run_in_kernels():
  for cls in FORMULAS:
    tile = cls.tile()
    assert tile.in_kernel
    weighs = isinstance(tile, kerple_power_family.WeightTile)
    assert weighs != isinstance(tile, dape_jax.encodings.AdditiveBias)


def test_scores_with_another_number_of_heads_are_rejected():
  tile = Kerple1ParaWht.tile()
  with pytest.raises(ValueError, match="has 1 heads, but scores have 3"):
    jax.eval_shape(tile, {"r1": SCORES[0, 0, :1]}, SCORES, TILE)
