"""Selection of the tiles to compute."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dape_jax.attention import tiling
from dape_jax.attention.mask import column, row, visible_mask

BLOCK = 4
BLOCKS = 3


@hypothesis.given(
    seed=st.integers(0, 2**16),
    causal=st.booleans(),
    window=st.sampled_from([None, 1, 3, 100]),
    with_ids=st.booleans(),
    ordered=st.booleans(),
)
@hypothesis.settings(deadline=None, max_examples=200, derandomize=True)
def test_bounds_are_safe(seed, causal, window, with_ids, ordered):
  """No visible tile is skipped, and no necessary mask is omitted."""
  rng = np.random.default_rng(seed)
  sides = []
  for _ in range(2):
    positions = rng.integers(-2, 14, BLOCK * BLOCKS)
    ids = rng.integers(0, 3, BLOCK * BLOCKS)
    if ordered:
      positions, ids = np.sort(positions), np.sort(ids)
    sides.append((jnp.array(positions), jnp.array(ids) if with_ids else None))
  (q, q_ids), (kv, kv_ids) = sides
  visible = visible_mask(
      column(q),
      row(kv),
      column(q_ids),
      row(kv_ids),
      causal=causal,
      window=window,
  )
  tiles = np.asarray(visible).reshape(BLOCKS, BLOCK, BLOCKS, BLOCK)
  q_bounds, kv_bounds = (tiling.block_bounds(*s, BLOCK) for s in sides)
  occupied = tiling.occupied_tiles(
      q_bounds, kv_bounds, causal=causal, window=window
  )
  assert np.all(np.asarray(occupied) >= tiles.any((1, 3)))
  full = tiling.all_visible(
      jax.tree.map(lambda x: x[:, None], q_bounds),
      jax.tree.map(lambda x: x[None, :], kv_bounds),
      causal=causal,
      window=window,
  )
  assert np.all(np.asarray(full) <= tiles.all((1, 3)))


def occupied_of(length, block, window=None, filled=None):
  positions = jnp.arange(length)
  ids = None if filled is None else jnp.int32(positions < filled)
  bounds = tiling.block_bounds(positions, ids, block)
  return np.asarray(
      tiling.occupied_tiles(bounds, bounds, causal=True, window=window)
  )


def test_causal_and_windowed_tiles_are_minimal():
  i, j = np.mgrid[:8, :8]
  np.testing.assert_array_equal(occupied_of(64, 8), j <= i)
  windowed = (j <= i) & (j >= i - 1)
  np.testing.assert_array_equal(occupied_of(64, 8, window=9), windowed)


def test_empty_slots_are_skipped():
  """A cache with 20 of 64 slots filled occupies three blocks of 8."""
  first, end = tiling.block_range(occupied_of(64, 8, filled=20))
  np.testing.assert_array_equal(end, [1, 2, 3, 0, 0, 0, 0, 0])
  np.testing.assert_array_equal(first, 0)


@pytest.mark.parametrize(
    "length, limit, block, blocks",
    [(1, 64, 1, 1), (127, 128, 127, 1), (129, 128, 72, 2), (1000, 128, 128, 8)],
)
def test_even_block(length, limit, block, blocks):
  assert tiling.even_block(length, limit) == block
  assert -(-length // block) == blocks
