"""Scaled RoPE against its formulas; see huggingface_rope_test too."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dape_jax
from dape_jax.encodings import rope_scaling
from dape_jax.encodings.rope_scaling import (
    RopeDynamicNtk,
    RopeNtk,
    RopePi,
    RopeYarn,
)

PLAIN = 10000.0 ** (-np.arange(0, 64, 2) / 64)


@pytest.mark.parametrize("cls", [RopePi, RopeNtk, RopeDynamicNtk, RopeYarn])
def test_factor_1_is_rope(cls):
  encoding = cls(num_heads=1, factor=1.0)
  np.testing.assert_allclose(encoding.frequencies(64), PLAIN, rtol=1e-12)
  assert encoding.magnitude() == 1


def test_position_interpolation():
  frequencies = RopePi(num_heads=1, factor=8.0).frequencies(64)
  np.testing.assert_allclose(frequencies, PLAIN / 8, rtol=1e-12)


def test_ntk_slows_the_slowest_pair_by_the_factor_and_leaves_the_fastest():
  frequencies = RopeNtk(num_heads=1, factor=8.0).frequencies(64)
  k = np.arange(32)
  expected = (10000.0 * 8 ** (64 / 62)) ** (-2 * k / 64)
  np.testing.assert_allclose(frequencies, expected, rtol=1e-12)
  np.testing.assert_allclose(frequencies[[0, -1]], [1, PLAIN[-1] / 8])
  np.testing.assert_array_equal(RopeNtk(1, factor=8.0).frequencies(2), [1.0])


def test_dynamic_ntk_equals_ntk_at_its_length():
  dynamic = RopeDynamicNtk(num_heads=1, train_length=512, length=4096)
  np.testing.assert_allclose(
      dynamic.frequencies(64), RopeNtk(1, factor=8.0).frequencies(64)
  )
  dynamic = RopeDynamicNtk(1, factor=2.0, train_length=512, length=1024)
  np.testing.assert_allclose(
      dynamic.frequencies(64), RopeNtk(1, factor=3.0).frequencies(64)
  )
  for length in (0, 100, 512):
    dynamic = RopeDynamicNtk(1, factor=2.0, train_length=512, length=length)
    np.testing.assert_allclose(dynamic.frequencies(64), PLAIN)


def test_dynamic_ntk_rotates_a_prefix_like_the_whole_text():
  dynamic = RopeDynamicNtk(num_heads=1, train_length=8, length=16)
  x = jax.random.normal(jax.random.key(0), (1, 40, 1, 8))
  positions = jnp.arange(40)
  whole, _ = dynamic.rotate(x, x, positions, positions)
  prefix, _ = dynamic.rotate(x[:, :5], x, positions[:5], positions)
  np.testing.assert_allclose(prefix, whole[:, :5], atol=1e-6)
  assert np.isfinite(whole).all()


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones():
  yarn = RopeYarn(num_heads=1, factor=4.0, train_length=2048)
  ratio = yarn.frequencies(64) / PLAIN
  turns = 2048 * PLAIN / (2 * np.pi)
  np.testing.assert_allclose(ratio[turns > 40], 1)
  np.testing.assert_allclose(ratio[turns < 0.7], 0.25)
  between = ratio[(turns > 0.7) & (turns < 40)]
  assert len(between) > 8
  assert (np.diff(between) < 0).all()
  np.testing.assert_allclose(np.diff(between, 2), 0, atol=1e-12)
  np.testing.assert_allclose(yarn.magnitude(), 0.1 * math.log(4) + 1)


def test_yarn_scales_rotated_channels_only():
  x = jnp.ones((1, 1, 1, 8))
  yarn = RopeYarn(num_heads=1, factor=16.0, fraction=0.5)
  query, key = yarn.rotate(x, x, jnp.array([77]), jnp.array([77]))
  scale = 0.1 * math.log(16) + 1
  np.testing.assert_allclose(
      jnp.sum((query * key)[..., :4]), 4 * scale**2, rtol=1e-6
  )
  np.testing.assert_array_equal(query[..., 4:], 1)


def test_partial_rotation_uses_the_number_of_rotated_channels():
  encoding = RopeNtk(num_heads=1, factor=4.0, fraction=0.5)
  x = jnp.ones((1, 1, 1, 16))
  query, _ = encoding.rotate(x, x, jnp.array([3]), jnp.array([3]))
  base = rope_scaling.ntk_theta(10000.0, 4.0, 8)
  angles = 3 * base ** (-np.arange(0, 8, 2) / 8)
  expected = np.cos(angles) - np.sin(angles)
  np.testing.assert_allclose(query[0, 0, 0, :4], expected, rtol=1e-5)


@pytest.mark.parametrize(
    "cls, options, message",
    [
        (RopePi, {"factor": 0.5}, "factor=0.5: must be 1 or more"),
        (RopeNtk, {"factor": 0.0}, "factor=0.0"),
        (RopeDynamicNtk, {"train_length": 0}, "train_length=0: must be 1"),
        (RopeDynamicNtk, {"length": -1}, "length=-1: must be the length of"),
        (RopeYarn, {"factor": 0.9}, "factor=0.9"),
        (RopeYarn, {"train_length": 0}, "train_length=0"),
        (RopeYarn, {"rope_theta": 1.0}, "rope_theta=1.0: must be above 1"),
        (RopeYarn, {"beta_slow": 0.0}, "beta_slow=0.0: must be above 0"),
        (
            RopeYarn,
            {"beta_fast": 1.0},
            "beta_fast=1.0: must be above beta_slow",
        ),
        (RopePi, {"fraction": 2.0}, "fraction=2.0"),
        (RopeYarn, {"rope_theta": -1.0}, "rope_theta=-1.0"),
    ],
)
def test_invalid_options_are_rejected(cls, options, message):
  with pytest.raises(dape_jax.ConfigError, match=message):
    cls(num_heads=1, **options)
