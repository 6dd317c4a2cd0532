"""Properties of attention; encodings_test.py covers every encoding."""

import cases
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dape_jax
from dape_jax.attention import tiling


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
  """Splits ten tokens into several tiles."""
  monkeypatch.setattr(tiling, "CPU_BLOCKS", (3, 4))
  monkeypatch.setattr(tiling, "CPU_BLOCKS_OF_FOUR", (2, 3))


def numpy_attention(query, key, value, visible):
  """Returns plain attention in float64, visible [B, T, S]."""
  query, key, value = (np.float64(x) for x in (query, key, value))
  repeats = query.shape[2] // key.shape[2]
  key, value = np.repeat(key, repeats, 2), np.repeat(value, repeats, 2)
  scores = np.einsum("btnh,bsnh->bnts", query, key) / query.shape[-1] ** 0.5
  weights = np.exp(scores) * visible[:, None]
  total = weights.sum(-1, keepdims=True)
  weights = np.divide(weights, total, where=total > 0, out=0 * weights)
  return np.einsum("bnts,bsnh->btnh", weights, value)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize("causal", [True, False])
def test_masks_and_grouped_queries(kv_heads, window, causal):
  query, _, _ = cases.qkv(0, 2, 11, 6, 4)
  _, key, value = cases.qkv(1, 2, 11, kv_heads, 4)
  segments = jnp.array([[1] * 4 + [2] * 5 + [0] * 2, [3] * 11])
  positions = jnp.array([[0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 0], range(11)])
  out = dape_jax.attention(
      query,
      key,
      value,
      q_positions=positions,
      kv_positions=positions,
      q_segment_ids=segments,
      kv_segment_ids=segments,
      causal=causal,
      window=window,
  )
  i, j = np.asarray(positions)[:, :, None], np.asarray(positions)[:, None, :]
  ids = np.asarray(segments)
  visible = (ids[:, :, None] == ids[:, None, :]) & (ids[:, :, None] > 0)
  if causal:
    visible &= j <= i
  if window is not None:
    visible &= abs(i - j) < window
  np.testing.assert_allclose(
      out, numpy_attention(query, key, value, visible), atol=2e-6
  )


def test_window_keeps_exactly_w_keys():
  _, _, value = cases.qkv(0, 1, 20, 1, 20)
  value = jnp.eye(20).reshape(1, 20, 1, 20)
  query = key = jnp.zeros((1, 20, 1, 4))
  positions = 1000 + jnp.arange(20)
  weights = dape_jax.attention(
      query, key, value, q_positions=positions, kv_positions=positions, window=5
  )[0, :, 0]
  kept = (weights > 0).sum(axis=1)
  np.testing.assert_array_equal(kept, np.minimum(np.arange(20) + 1, 5))


@pytest.mark.parametrize("name", cases.NAMES)
@pytest.mark.parametrize(
    "heads, head_dim, length", [(1, 4, 1), (3, 10, 7), (12, 6, 5)]
)
def test_odd_sizes(name, heads, head_dim, length):
  encoding, score_mod = cases.make(name, heads)
  qkv = cases.qkv(0, 2, length, heads, head_dim)
  out = cases.attend(encoding, score_mod, *qkv, jnp.arange(length))
  assert out.shape == (2, length, heads, head_dim)
  # The first query sees only itself, so its score does not matter.
  np.testing.assert_allclose(out[:, 0], qkv[2][:, 0], rtol=1e-5)


def test_fire_distances_are_exact_at_large_positions():
  encoding = dape_jax.Fire(num_heads=2, threshold=1e6)
  params = encoding.init(jax.random.key(0), method="score_mod")
  positions = jnp.arange(40) * 7
  bias = lambda p: encoding.apply(params, p, p, method="bias")
  np.testing.assert_array_equal(bias(positions), bias(positions + 70_000))


@pytest.mark.parametrize("name", cases.NAMES)
def test_bfloat16_scores_are_float32(name):
  """Inputs and output are rounded, but not intermediate results."""
  encoding, score_mod = cases.make(name, 3)
  qkv = cases.qkv(0, 2, 33, 3, 8, jnp.bfloat16)
  positions = jnp.arange(33)
  out = cases.attend(encoding, score_mod, *qkv, positions)
  assert out.dtype == jnp.bfloat16
  exact = cases.attend(
      encoding, score_mod, *(x.astype(jnp.float32) for x in qkv), positions
  )
  # RoPE also rounds the rotated queries and keys to bfloat16.
  np.testing.assert_allclose(np.float32(out), exact, atol=0.03)


@pytest.mark.parametrize(
    "name", [n for n in cases.NAMES if not n.startswith("dape_v2")]
)
@hypothesis.given(seed=st.integers(0, 2**16))
@hypothesis.settings(deadline=None, max_examples=3, derandomize=True)
def test_output_is_invariant_to_key_order(name, seed):
  """Excludes V2, whose convolution runs over neighboring slots."""
  encoding, score_mod = cases.make(name, 2)
  query, key, value = cases.qkv(seed, 1, 9, 2, 4)
  positions = jnp.arange(9)
  query, key = encoding.rotate(query, key, positions, positions)
  order = jax.random.permutation(jax.random.key(seed), 9)
  plain, permuted = (
      dape_jax.attention(
          query,
          key[:, o],
          value[:, o],
          score_mod,
          q_positions=positions,
          kv_positions=positions[o],
      )
      for o in (jnp.arange(9), order)
  )
  np.testing.assert_allclose(plain, permuted, atol=2e-6)


@pytest.mark.parametrize("name", cases.NAMES)
def test_gradients_equal_finite_differences(name):
  """For every parameter, in float64, with a batch of 2."""
  with jax.enable_x64(True):
    encoding, score_mod = cases.make(name, 2)
    if score_mod is None or not jax.tree.leaves(score_mod.params):
      pytest.skip("no parameters")
    qkv = cases.qkv(0, 2, 6, 2, 4, jnp.float64)
    params = jax.tree.map(lambda x: x.astype(jnp.float64), score_mod.params)
    if "r1" in params.get("base", params):  # KERPLE: inside the clamp
      target = params.get("base", params)
      target |= {k: jnp.abs(target[k]) + 0.1 for k in ("r1", "r2")}

    @jax.jit
    @jax.value_and_grad
    def total(params):
      mod = score_mod.replace(params=params)
      out = cases.attend(encoding, mod, *qkv, jnp.arange(6))
      return jnp.sum(jnp.sin(3 * out))

    def moved(direction, step):
      return jax.tree.map(lambda p, d: p + step * d, params, direction)

    _, gradient = total(params)
    for seed in range(3):
      leaves, tree = jax.tree.flatten(params)
      keys = jax.random.split(jax.random.key(seed), len(leaves))
      direction = tree.unflatten(
          [
              jax.random.normal(k, x.shape, jnp.float64)
              for k, x in zip(keys, leaves)
          ]
      )
      above, below = (total(moved(direction, h))[0] for h in (1e-6, -1e-6))
      exact = sum(
          jnp.vdot(g, d)
          for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction))
      )
      np.testing.assert_allclose(
          (above - below) / 2e-6, exact, rtol=1e-5, atol=1e-8
      )


def test_vmap_jit_remat_and_repetition_give_the_same_gradients():
  encoding, score_mod = cases.make("dape_v2_kerple_log", 2)
  qkv = cases.qkv(0, 2, 6, 2, 4)

  def total(params, qkv):
    mod = score_mod.replace(params=params)
    out = cases.attend(encoding, mod, *qkv, jnp.arange(6))
    return jnp.sum(jnp.sin(out))

  gradient = jax.grad(total)(score_mod.params, qkv)
  jitted = jax.jit(jax.grad(total))
  once, again = (jitted(score_mod.params, qkv) for _ in range(2))
  jax.tree.map(np.testing.assert_array_equal, once, again)
  remat = jax.grad(jax.checkpoint(total))(score_mod.params, qkv)
  vmapped = jax.vmap(jax.grad(total), (None, 0))(
      score_mod.params, jax.tree.map(lambda x: x[:, None], qkv)
  )
  vmapped = jax.tree.map(lambda x: x.sum(0), vmapped)
  for other in (once, remat, vmapped):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5),
        gradient,
        other,
    )


def test_mesh_matches_one_device():
  encoding, score_mod = cases.make("dape_v2_fire", 2)
  qkv = cases.qkv(0, 8, 6, 2, 4)
  one = cases.attend(encoding, score_mod, *qkv, jnp.arange(6))
  axis = jax.sharding.AxisType.Auto
  mesh = jax.make_mesh((8,), ("data",), axis_types=(axis,))
  with jax.set_mesh(mesh):
    sharding = jax.NamedSharding(mesh, jax.P("data"))
    attend = jax.jit(
        lambda *qkv: cases.attend(encoding, score_mod, *qkv, jnp.arange(6))
    )
    many = attend(*jax.device_put(qkv, sharding))
    program = attend.lower(*jax.device_put(qkv, sharding)).compile().as_text()
  assert many.sharding.is_equivalent_to(sharding, 4)
  assert "all-gather" not in program
  np.testing.assert_allclose(one, many, atol=2e-6)


class SumOfGates(dape_jax.encodings.AdditiveBias):
  """A minimal bias with token features: B(i, j) = c_i - c_j."""

  def bias(self, params, tile, dtype):
    q, kv = tile.q_features, tile.kv_features
    return (q[:, None, :] - kv[None, :, :]).transpose(2, 0, 1).astype(dtype)


def test_features_reach_the_score_modifier():
  qkv = cases.qkv(0, 2, 5, 3, 4)
  sums = jax.random.normal(jax.random.key(5), (2, 5, 3))
  positions = jnp.arange(5)
  out = dape_jax.attention(
      *qkv,
      dape_jax.ScoreMod({}, SumOfGates()),
      q_positions=positions,
      kv_positions=positions,
      q_features=sums,
      kv_features=sums,
  )
  query, key, value = (np.float64(x) for x in qkv)
  scores = np.einsum("btnh,bsnh->bnts", query, key) / 2
  scores -= np.moveaxis(np.float64(sums), 1, 2)[:, :, None, :]
  weights = np.tril(np.exp(scores))
  weights /= weights.sum(-1, keepdims=True)
  expected = np.einsum("bnts,bsnh->btnh", weights, value)
  np.testing.assert_allclose(out, expected, atol=2e-6)


def test_wrong_number_of_heads_raises():
  _, score_mod = cases.make("alibi", 1)
  with pytest.raises(ValueError, match="has 1 heads, but scores have 2"):
    cases.attend(
        dape_jax.Alibi(num_heads=1),
        score_mod,
        *cases.qkv(0, 1, 4, 2, 4),
        jnp.arange(4),
    )


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"implementation": "pallas_tpu"}, NotImplementedError, "pallas_tpu"),
        ({"implementation": "palas"}, NotImplementedError, "'chunked', 'pall"),
        ({"sink": jnp.zeros(3)}, ValueError, "sink has shape"),
        ({"window": 0}, ValueError, "window=0"),
        ({"q_segment_ids": jnp.ones((1, 4), int)}, ValueError, "both"),
        ({"q_positions": jnp.arange(4.0)}, ValueError, "be integers"),
        ({"kv_positions": jnp.arange(3)}, ValueError, "kv_positions has shape"),
        ({"key": jnp.zeros((1, 4, 3, 4))}, ValueError, "value has shape"),
        ({"value": jnp.zeros((1, 4, 4))}, ValueError, "value has shape"),
    ],
)
def test_invalid_arguments_raise(change, error, message):
  query, key, value = cases.qkv(0, 1, 4, 2, 4)
  arguments = dict(
      query=query,
      key=key,
      value=value,
      q_positions=jnp.arange(4),
      kv_positions=jnp.arange(4),
  )
  with pytest.raises(error, match=message):
    dape_jax.attention(**arguments | change)
