import itertools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dape_jax
from dape_jax.encodings.randomized import randomized_positions

draw = jax.jit(randomized_positions, static_argnums=(2, 3))


@hypothesis.given(st.integers(0, 2**31 - 1), st.sampled_from([6, 7, 3000]))
@hypothesis.settings(deadline=None, max_examples=15, derandomize=True)
def test_each_document_gets_increasing_positions_of_the_range(seed, max_length):
  positions = jnp.array([[0, 1, 2, 3, 4, 5], [0, 1, 0, 1, 2, -1]], jnp.int32)
  drawn = np.asarray(draw(jax.random.key(seed), positions, max_length))
  assert drawn.dtype == np.int32
  assert (np.diff(drawn[0]) > 0).all()
  assert drawn[0, 0] >= 0 and drawn[0, -1] < max_length
  # One sample per row: its documents start with the same positions.
  np.testing.assert_array_equal(drawn[1, :2], drawn[1, 2:4])
  assert 0 <= drawn[1, 2] < drawn[1, 3] < drawn[1, 4] < max_length
  assert drawn[1, 5] == -1


def test_all_positions_are_used_if_the_range_is_exact():
  positions = jnp.arange(100)
  drawn = randomized_positions(jax.random.key(0), positions, 100)
  np.testing.assert_array_equal(drawn, positions)


@pytest.mark.parametrize("padding", [0, 2])
def test_subsets_are_equally_likely(padding):
  rows = 20_000
  positions = jnp.array([0, 1, 2] + [0] * padding)
  drawn = draw(jax.random.key(1), positions, 6, rows)[:, :3]
  assert drawn.shape == (rows, 3)
  subsets, counts = np.unique(np.asarray(drawn), axis=0, return_counts=True)
  expected = list(itertools.combinations(range(6), 3))
  np.testing.assert_array_equal(subsets, expected)
  deviation = (counts - rows / 20) / np.sqrt(rows / 20 * 19 / 20)
  assert np.abs(deviation).max() < 4


def test_same_key_same_positions_and_rows_differ():
  positions = jnp.broadcast_to(jnp.arange(50, dtype=jnp.int32), (2, 50))
  first, again, other = (
      draw(jax.random.key(seed), positions, 2**17) for seed in (3, 3, 4)
  )
  np.testing.assert_array_equal(first, again)
  assert (first[0] != first[1]).any()
  assert (first != other).any()


def test_position_beyond_the_row_becomes_minus_one():
  drawn = randomized_positions(jax.random.key(0), jnp.array([0, 7, 1]), 10)
  assert drawn[1] == -1
  assert 0 <= drawn[0] < drawn[2] < 10


def test_short_range_is_rejected():
  with pytest.raises(dape_jax.ConfigError, match="max_length=4: must be at"):
    randomized_positions(jax.random.key(0), jnp.arange(5), 4)
