"""Checks for every encoding whose features depend on the tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import dape_jax

# Compilation dominates the time of these tests.
jit = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)

WIDTH, HEADS, KV_HEADS, HEAD_DIM = 6, 4, 2, 4


def tokens(seed, batch, length, dtype=np.float32):
  """Returns random x, query, key and value."""
  rng = np.random.default_rng(seed)
  heads = (HEADS, KV_HEADS, KV_HEADS)
  shapes = [(WIDTH,), *((n, HEAD_DIM) for n in heads)]
  return tuple(
      rng.normal(size=(batch, length, *shape)).astype(dtype) for shape in shapes
  )


def random_params(encoding, seed=0):
  """Returns N(0, 0.5^2) samples for every parameter that `features` creates."""
  x, query, key, _ = tokens(0, 1, 2)
  shapes = jax.eval_shape(
      lambda: encoding.init(jax.random.key(0), x, query, key, method="features")
  )["params"]
  rng = np.random.default_rng(seed)
  return jax.tree.map(
      lambda x: np.float32(rng.normal(scale=0.5, size=x.shape)), shapes
  )


def features(encoding, params, x, query, key, **kwargs):
  return encoding.apply(
      {"params": params}, x, query, key, method="features", **kwargs
  )


def bias(encoding, params, inputs, q_positions, kv_positions):
  """Returns the static bias of the first batch element."""

  @jit
  def run(q_positions, kv_positions):
    of_queries, of_keys = features(encoding, params, *inputs[:3])
    return encoding.apply(
        {"params": params},
        q_positions,
        kv_positions,
        of_queries[0],
        of_keys[0],
        method="bias",
    )

  return run(q_positions, kv_positions)


def initial_params(encoding, width, head_dim):
  """Returns the initial parameters for a model of this width."""
  x = jnp.zeros((1, 1, width))
  heads = jnp.zeros((1, 1, encoding.num_heads, head_dim))
  init = lambda key: encoding.init(key, x, heads, heads, method="features")
  return jit(init)(jax.random.key(0))["params"]


def attended(encoding, params, inputs, positions, segment_ids=None, **options):
  """Returns attention over the tokens, [B, T, N, H]."""
  x, query, key, value = inputs
  q_features, kv_features = features(
      encoding, params, x, query, key, segment_ids=segment_ids
  )
  return dape_jax.attention(
      query,
      key,
      value,
      encoding.apply({"params": params}, method="score_mod"),
      q_positions=positions,
      kv_positions=positions,
      q_segment_ids=segment_ids,
      kv_segment_ids=segment_ids,
      q_features=q_features,
      kv_features=kv_features,
      **options,
  )


def check_gradients(encoding):
  """Checks gradients of parameters and tokens against finite differences."""
  rng = np.random.default_rng(0)
  arguments = (random_params(encoding), tokens(1, 1, 5))
  arguments = jax.tree.map(np.float64, arguments)
  weights = rng.normal(size=(1, 5, HEADS, HEAD_DIM))
  step = jax.tree.map(lambda x: 1e-5 * rng.normal(size=x.shape), arguments)

  def objective(arguments):
    params, inputs = arguments
    of_tokens = features(encoding, params, *inputs[:3])
    assert all(x.dtype == jnp.float64 for x in jax.tree.leaves(of_tokens))
    out = attended(
        encoding, params, inputs, jnp.arange(5), implementation="reference"
    )
    return jnp.sum(out * weights)

  with jax.enable_x64(True):
    run = jit(jax.value_and_grad(objective))
    _, gradients = run(arguments)
    shifted = lambda sign: jax.tree.map(
        lambda x, dx: x + sign * dx, arguments, step
    )
    difference = (run(shifted(1))[0] - run(shifted(-1))[0]) / 2
    products = jax.tree.map(lambda g, dx: np.sum(g * dx), gradients, step)
    expected = sum(jax.tree.leaves(products))
  np.testing.assert_allclose(difference, expected, rtol=1e-6)
  assert all(np.any(x) for x in jax.tree.leaves(gradients[0]))


def check_packed_documents(encoding):
  """Checks that packed documents equal separate ones, gradients included."""
  params = random_params(encoding)
  first, second = tokens(2, 1, 4), tokens(3, 1, 6)
  rng = np.random.default_rng(4)
  cotangents = [
      np.float32(rng.normal(size=(1, n, HEADS, HEAD_DIM))) for n in (4, 6)
  ]

  def rows(first, second, padding):
    """Returns both documents in one row, and each in a row of its own."""
    hole = lambda n: np.full((1, n, *first.shape[2:]), padding, np.float32)
    together = np.concatenate([first, hole(2), second, hole(2)], axis=1)
    alone = [np.concatenate([hole(6), second, hole(2)], axis=1)]
    alone.insert(0, np.concatenate([first, hole(10)], axis=1))
    return np.concatenate([together, hole(14)]), np.concatenate(alone)

  inputs = [rows(*x, np.nan) for x in zip(first, second)]
  weights = rows(*cotangents, 0.0)
  ids = [
      np.int32([[1] * 4 + [0] * 2 + [2] * 6 + [0] * 2, [0] * 14]),
      np.int32([[1] * 4 + [0] * 10, [0] * 6 + [2] * 6 + [0] * 2]),
  ]
  positions = np.int32([*range(4), 0, 0, *range(6), 0, 0])

  @jit
  def run(params, inputs, weights, ids):
    def objective(params, inputs):
      out = attended(encoding, params, inputs, positions, ids)
      return jnp.sum(out * weights), out

    return jax.grad(objective, (0, 1), has_aux=True)(params, inputs)

  results = []
  for k in (0, 1):
    (of_params, of_tokens), out = run(
        params, tuple(x[k] for x in inputs), weights[k], ids[k]
    )
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(of_tokens))
    by_token = jax.tree.map(lambda x: np.sum(x, axis=0), (out, of_tokens))
    results.append((of_params, by_token))
  close = lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5)
  jax.tree.map(close, *results)


def check_continuation(encoding):
  """Checks chunks after a cache left-padded with NaN against one pass."""
  params, inputs = random_params(encoding), tokens(4, 2, 9)
  for x in inputs:
    x[1, :2] = np.nan
  ids = np.ones((2, 9), np.int32)
  ids[1, :2] = 0
  positions = np.int32([np.arange(9), np.maximum(np.arange(9) - 2, 0)])

  @jit
  def make(x, query, key, ids, previous):
    return features(
        encoding, params, x, query, key, segment_ids=ids, previous=previous
    )

  @jit
  def attend(query, key, value, q_features, kv_features):
    return dape_jax.attention(
        query,
        key,
        value,
        encoding.apply({"params": params}, method="score_mod"),
        q_positions=positions,
        kv_positions=positions,
        q_segment_ids=ids,
        kv_segment_ids=ids,
        q_features=q_features,
        kv_features=kv_features,
    )

  whole = attend(*inputs[1:], *make(*inputs[:3], ids, None))
  parts, previous = [], None
  for t in range(0, 9, 3):
    part = (x[:, t : t + 3] for x in (*inputs[:3], ids))
    parts.append(make(*part, previous))
    of_keys = parts[-1][1]
    if of_keys is not None:
      assert of_keys.shape == (2, 3, encoding.key_features)
      previous = of_keys[:, -1]
  assert (previous is None) == (encoding.key_features == 0)
  joined = jax.tree.map(lambda *x: np.concatenate(x, axis=1), *parts)
  np.testing.assert_allclose(attend(*inputs[1:], *joined), whole, atol=3e-6)


def check_bfloat16(encoding):
  """Checks that bfloat16 inputs are converted to float32 before use."""
  params = random_params(encoding)
  narrow = [jnp.asarray(x, jnp.bfloat16) for x in tokens(5, 1, 3)[:3]]

  @jit
  def run(narrow):
    wide = [x.astype(jnp.float32) for x in narrow]
    both = (features(encoding, params, *x) for x in (narrow, wide))
    return tuple(both)

  def check(a, b):
    assert a.dtype == jnp.float32
    np.testing.assert_array_equal(a, b)

  jax.tree.map(check, *run(narrow))
