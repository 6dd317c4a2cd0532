"""FIRE can represent other biases: Theorem 3.1 of arXiv 2310.04418, in float64.

FIRE's form is f(psi(i - j) / psi(L)) with L the threshold, here the largest
length. If psi is the logarithm, the form is `fire_bias`; for other psi it is
written out.
"""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np

import dape_jax
from dape_jax.encodings import fire
from dape_jax.encodings.alibi import AlibiTile, alibi_slopes
from dape_jax.encodings.kerple import KerpleLogTile
from dape_jax.encodings.kerple_power_family import KerplePowerTile
from dape_jax.encodings.sandwich import SandwichTile, sandwich_frequencies
from dape_jax.encodings.t5 import T5Tile, t5_bucket_borders

LONGEST = 301
POSITIONS = np.arange(LONGEST)
CAUSAL = POSITIONS[None] <= POSITIONS[:, None]
DISTANCES = np.float64(np.abs(POSITIONS[:, None] - POSITIONS))[None]

values = st.floats(0.01, 2.0)
few_examples = hypothesis.settings(
    deadline=None, max_examples=8, derandomize=True
)


@functools.partial(jax.jit, static_argnums=0)
def compiled_bias(function, params):
  positions = jnp.asarray(POSITIONS, jnp.int32)
  tile = dape_jax.Tile(positions[:, None], positions[None])
  return function.bias(params, tile, jnp.dtype("float64"))


def bias(function, params):
  with jax.enable_x64(True):
    return np.asarray(compiled_bias(function, params))


def fire_with(c, kernels, biases):
  """Returns FIRE's bias with ReLU and the threshold LONGEST."""
  params = {"c": np.float64(c), "m": np.float64(1)}
  for k, (kernel, offset) in enumerate(zip(kernels, biases)):
    params |= {f"kernel_{k}": kernel, f"bias_{k}": offset}
  return bias(fire.FireTile(float(LONGEST), 0.0), params)


def assert_same(ours, theirs):
  ours, theirs = (np.where(CAUSAL, x, 0) for x in (ours, theirs))
  np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


@few_examples
@hypothesis.given(values, values)
def test_kerple_log(r1, r2):
  normalizer = np.log(r2 * LONGEST + 1) + fire.EPSILON
  ours = fire_with(
      r2,
      [np.ones((1, 1)), np.array([[-r1 * normalizer]])],
      [np.zeros(1), np.zeros(1)],
  )
  params = {"r1": np.array([r1]), "r2": np.array([r2])}
  assert_same(ours, bias(KerpleLogTile(), params))


@few_examples
@hypothesis.given(values, values)
def test_kerple_power(r1, r2):
  x = DISTANCES**r2 / np.float64(LONGEST) ** r2
  ours = -r1 * LONGEST**r2 * np.maximum(x, 0)
  params = {"r1": np.array([r1]), "r2": np.array([r2])}
  assert_same(ours, bias(KerplePowerTile(), params))


@few_examples
@hypothesis.given(st.sampled_from([1, 8, 12]))
def test_alibi(num_heads):
  x = np.maximum(DISTANCES / LONGEST, 0)
  ours = -alibi_slopes(num_heads)[:, None, None] * LONGEST * x
  assert_same(ours, bias(AlibiTile(num_heads), {}))


@few_examples
@hypothesis.given(st.integers(0, 2**30), values)
def test_t5_of_32_buckets_takes_47_units(seed, c):
  table = np.random.default_rng(seed).normal(size=(32, 3))
  borders = np.array(t5_bucket_borders())
  # Linear between the last distance of each bucket and the first of the next.
  knots = np.unique(np.concatenate([borders, borders[1:] - 1]))
  heights = table[np.searchsorted(borders, knots, side="right") - 1]
  knots = np.log(c * knots + 1) / (np.log(c * LONGEST + 1) + fire.EPSILON)
  slopes = np.diff(heights, axis=0) / np.diff(knots)[:, None]
  slopes = np.concatenate([slopes, np.zeros((1, 3))])
  kinks = np.diff(slopes, axis=0, prepend=0)
  assert len(kinks) == 47
  ours = fire_with(c, [np.ones((1, 47)), kinks], [-knots, heights[0]])
  assert_same(ours, bias(T5Tile(), {"table": table}))


@few_examples
@hypothesis.given(st.sampled_from([(1, 2), (12, 16), (3, 128)]))
def test_sandwich(sizes):
  num_heads, dimension = sizes
  x = DISTANCES / LONGEST
  units = np.cos(x[..., None] * LONGEST * sandwich_frequencies(dimension))
  scales = num_heads / (8 * np.arange(1, num_heads + 1))
  ours = scales[:, None, None] * (units.sum(-1) - dimension / 2)
  assert_same(ours, bias(SandwichTile(num_heads, dimension), {}))
