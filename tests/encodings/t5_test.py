import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dape_jax
from dape_jax.encodings.t5 import T5, T5Tile, t5_bucket_borders


def bucket(distance, num_buckets, max_distance):
  exact = num_buckets // 2
  if distance < exact:
    return distance
  steps = np.log(distance / exact) / np.log(max_distance / exact)
  # Rounding must not move integer borders down.
  large = exact + int(steps * (num_buckets - exact) + 1e-6)
  return min(large, num_buckets - 1)


def test_borders_match_the_paper():
  last = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
  assert t5_bucket_borders() == (*range(16), *last)
  both = (*range(8), 8, 12, 16, 23, 32, 46, 64, 91)
  assert t5_bucket_borders(bidirectional=True) == both


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(
    "num_buckets, max_distance", [(32, 128), (12, 100), (4, 3)]
)
def test_lookup(num_buckets, max_distance, bidirectional):
  encoding = T5(
      num_heads=3,
      num_buckets=num_buckets,
      max_distance=max_distance,
      bidirectional=bidirectional,
      multiplier=8.0,
  )
  table = np.random.default_rng(0).normal(size=(num_buckets, 3))
  table = table.astype(np.float32)
  q_positions = np.array([150, 2**20])
  kv_positions = np.concatenate([np.arange(300), [2**20, 2**30]])

  @jax.jit
  def bias_of(table):
    variables = {"params": {"table": table}}
    return encoding.apply(variables, q_positions, kv_positions, method="bias")

  bias = bias_of(table)
  side = num_buckets // 2 if bidirectional else num_buckets
  for t, i in enumerate(q_positions):
    rows = []
    for j in kv_positions:
      distance = abs(i - j) if bidirectional else max(i - j, 0)
      upper = side if bidirectional and j > i else 0
      rows.append(upper + bucket(distance, side, max_distance))
    np.testing.assert_array_equal(bias[:, t], 8 * table[rows].T)


def test_gradient_counts_the_pairs_of_a_bucket():
  tile = dape_jax.Tile(jnp.array([[40], [41]]), jnp.arange(60)[None])

  @jax.jit
  def gradient(table):
    total = (
        lambda table: T5Tile(8, 20)
        .bias({"table": table}, tile, jnp.float32)
        .sum()
    )
    return jax.grad(total)(table)

  counts = np.zeros(8)
  for i in (40, 41):
    for j in range(60):
      counts[bucket(max(i - j, 0), 8, 20)] += 1
  np.testing.assert_array_equal(
      gradient(jnp.ones((8, 2))), np.stack([counts] * 2, axis=1)
  )


def test_rounded_operands_keep_the_table():
  table = np.random.default_rng(1).normal(size=(32, 2)).astype(np.float32)
  positions = np.arange(0, 200, 7)
  tile = dape_jax.Tile(positions[:, None], positions[None])
  exact, rounded = (
      jax.jit(T5Tile().bias, static_argnums=2)(
          {"table": table}, tile.replace(operand_dtype=dtype), jnp.float32
      )
      for dtype in (None, jnp.bfloat16)
  )
  np.testing.assert_allclose(rounded, exact, rtol=2**-16)


def test_initial_values():
  encoding = T5(num_heads=100)
  table = encoding.init(jax.random.key(0), method="score_mod")["params"][
      "table"
  ]
  assert table.shape == (32, 100)
  assert abs(table.std() - 0.02) < 0.001 and abs(table.mean()) < 0.002


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_buckets": 1}, "num_buckets=1: must be 2 or more"),
        ({"num_buckets": 9, "bidirectional": True}, "even and 4 or more"),
        ({"num_buckets": 2, "bidirectional": True}, "even and 4 or more"),
        ({"max_distance": 16}, "max_distance=16: must be above 16"),
        ({"max_distance": 8, "bidirectional": True}, "must be above 8"),
    ],
)
def test_invalid_options_are_rejected(options, message):
  with pytest.raises(dape_jax.ConfigError, match=message):
    T5(num_heads=2, **options)
