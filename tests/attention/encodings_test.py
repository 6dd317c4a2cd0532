"""Every encoding in every implementation: outputs, gradients and invariants.

Registering an encoding adds a case here; no check can be skipped for it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import assert_close, interpret_kernels
from encoding_cases import (
    CASES,
    HEAD_DIM,
    HEADS,
    LENGTH,
    NAMES,
    inputs,
    parameters,
    program,
    projected,
    self_attention,
)

import dape_jax
from dape_jax.attention import (
    append_to_slots,
    last_slot,
    num_visible_keys,
    slots_of_layer,
    tiling,
)

SHAPE = (2, LENGTH, HEADS, HEAD_DIM)
# Row 0 packs documents A, B and C between padding; row 1 is one document.
A, B, C = slice(2, 11), slice(11, 12), slice(12, 20)
WHOLE = np.arange(LENGTH)
POSITIONS = np.zeros((2, LENGTH), np.int32)
IDS = np.zeros((2, LENGTH), np.int32)
for number, part in enumerate((A, B, C)):
  POSITIONS[0, part] = WHOLE[: part.stop - part.start]
  IDS[0, part] = number + 1
POSITIONS[1], IDS[1] = WHOLE, 7


@pytest.fixture(autouse=True)
def several_tiles(monkeypatch):
  monkeypatch.setattr(tiling, "CPU_BLOCKS", (8, 12))
  monkeypatch.setattr(tiling, "CPU_BLOCKS_OF_FOUR", (8, 12))


def cotangent(seed=5):
  return np.float32(np.random.default_rng(seed).normal(size=SHAPE))


def reference_in_float64(name, **options):
  """Returns a function of x, positions, ids and the output's cotangent."""
  with jax.enable_x64(True):
    compiled = program(name, "reference", **options)
  wide = lambda x: np.asarray(x, np.float64)
  params = jax.tree.map(wide, parameters(name))

  def run(x, positions, ids, cotangent):
    with jax.enable_x64(True):
      out = compiled(params, wide(x), positions, ids, wide(cotangent))
      return jax.tree.map(np.asarray, out)

  return run


@pytest.mark.parametrize("name", NAMES)
def test_every_implementation(name, monkeypatch):
  """Each matches the float64 reference and satisfies the same invariants."""
  reference = reference_in_float64(name)
  expected = reference(inputs(), POSITIONS, IDS, cotangent())
  for gradient in jax.tree.leaves(expected):
    assert gradient.any(), "an input or parameter has no effect"
  check_invariants(name, reference, expected)
  check_bfloat16_far_out(name, reference)
  for implementation in ("chunked", "pallas_tpu"):
    if implementation == "pallas_tpu":
      interpret_kernels(monkeypatch)
      if not kernels_support(name):
        with pytest.raises(NotImplementedError, match="'pallas_tpu': "):
          self_attention(
              name, "pallas_tpu", parameters(name), inputs(), POSITIONS, IDS
          )
        continue
    run = functools.partial(program(name, implementation), parameters(name))
    result = run(inputs(), POSITIONS, IDS, cotangent())
    try:
      assert_equals(expected, *result)
      check_invariants(name, run, result)
      if implementation == "chunked":
        check_chunks_through_the_cache(name, run)
    except AssertionError as error:
      raise AssertionError(f"implementation={implementation!r}") from error


def check_invariants(name, run, result):
  check_repetition(run, result)
  check_padding(run, *result)
  check_documents(run, *result)
  check_causality(run)
  if CASES[name].depends_on_distance_only:
    check_shift(run, CASES[name].far, result)


def assert_equals(expected, out, gradients):
  expected_out, (expected_params, expected_x) = expected
  assert_close((out, gradients[1]), (expected_out, expected_x), 1e-3)
  # Some gradients nearly cancel, so errors are relative to the largest one.
  largest = max(
      (abs(g).max() for g in jax.tree.leaves(expected_params)), default=0
  )
  jax.tree.map(
      lambda ours, theirs: np.testing.assert_allclose(
          ours, theirs, rtol=0, atol=1e-3 * largest
      ),
      gradients[0],
      expected_params,
  )


def kernels_support(name):
  encoding = CASES[name].encoding.bind({"params": parameters(name)})
  score_mod = encoding.score_mod()
  features = jax.eval_shape(
      lambda x: encoding.features(x, *projected(x)[:2]), inputs()
  )
  return features == (None, None) and (
      score_mod is None or score_mod.function.in_kernel
  )


def check_repetition(run, result):
  """Results are deterministic, bit for bit."""
  again = run(inputs(), POSITIONS, IDS, cotangent())
  jax.tree.map(np.testing.assert_array_equal, again, result)


def check_padding(run, out, gradients):
  """Padding outputs zeros, and its contents (NaN) have no effect."""
  dirty = inputs().copy()
  dirty[IDS == 0] = np.nan
  again = run(dirty, POSITIONS, IDS, cotangent())
  jax.tree.map(np.testing.assert_array_equal, again, (out, gradients))
  assert not out[IDS == 0].any()
  assert not gradients[1][IDS == 0].any()


def check_documents(run, out, gradients):
  """Packing and padding do not change a document's output."""
  del gradients
  x, positions, ids = np.zeros_like(inputs()), POSITIONS * 0, IDS * 0
  first, last = slice(0, 9), slice(LENGTH - 8, LENGTH)
  for row, (slot, part) in enumerate(((first, A), (last, C))):
    x[row, slot] = inputs()[0, part]
    positions[row, slot] = POSITIONS[0, part]
    ids[row, slot] = 5
  alone, _ = run(x, positions, ids, cotangent())
  np.testing.assert_allclose(alone[0, first], out[0, A], atol=2e-5)
  np.testing.assert_allclose(alone[1, last], out[0, C], atol=2e-5)


def check_causality(run):
  """The gradient of an output with respect to later inputs is exactly 0."""
  picked = np.zeros(SHAPE, np.float32)
  picked[1, 10] = cotangent()[1, 10]
  _, (_, gradient) = run(inputs(), POSITIONS, IDS, picked)
  assert gradient[1, :11].all(-1).all()
  np.testing.assert_array_equal(gradient[1, 11:], 0)
  np.testing.assert_array_equal(gradient[0], 0)


def check_shift(run, far, result):
  """Shifting all positions changes nothing."""
  moved = run(inputs(), POSITIONS + far, IDS, cotangent())
  assert_close(moved, result, 2e-5)


def check_bfloat16_far_out(name, reference):
  """Positions are exact even where bfloat16 has a spacing of 512."""
  positions = POSITIONS + CASES[name].far
  run = jax.jit(functools.partial(self_attention, name, "chunked"))
  out = run(
      parameters(name), jnp.asarray(inputs(), jnp.bfloat16), positions, IDS
  )
  assert out.dtype == jnp.bfloat16
  expected, _ = reference(inputs(), positions, IDS, cotangent())
  np.testing.assert_allclose(np.float32(out), expected, atol=0.1)


def check_chunks_through_the_cache(name, run):
  """Decoding in chunks of 6 after left padding matches one pass."""
  positions, ids = POSITIONS[1], IDS.copy()
  ids[0] = np.where(WHOLE < 4, 0, 3)
  positions = np.stack([np.maximum(positions - 4, 0), positions])
  params = parameters(name)
  whole, _ = run(inputs(), positions, ids, cotangent())

  @jax.jit
  def step(x, start, keys, values, features):
    encoding = CASES[name].encoding.bind({"params": params})
    size, filled = x.shape[1], start + x.shape[1]
    here, seen = (
        jax.lax.dynamic_slice_in_dim(jnp.asarray(y), start, size, 1)
        for y in (positions, ids)
    )
    x = encoding.embed(x, here)
    query, key, value = projected(x)
    append = lambda slots, new: append_to_slots(slots, 0, new, filled)
    own = lambda slots: slots_of_layer(slots, 0)
    q_features, kv_features = encoding.features(
        x,
        query,
        key,
        segment_ids=seen,
        previous=last_slot(own(features), filled, size),
    )
    seen_ids = jnp.where(WHOLE[None] < filled, ids, 0)
    query = encoding.scale_query(
        query,
        num_visible_keys(
            q_positions=here,
            kv_positions=positions,
            q_segment_ids=seen,
            kv_segment_ids=seen_ids,
            causal=True,
            window=None,
        ),
    )
    query, key = encoding.rotate(query, key, here, here)
    keys = append(keys, key)
    values = append(values, value)
    if kv_features is not None:
      features = append(features, kv_features)
    out = dape_jax.attention(
        query,
        own(keys).reshape(SHAPE),
        own(values).reshape(SHAPE),
        encoding.score_mod(),
        q_positions=here,
        kv_positions=positions,
        q_segment_ids=seen,
        kv_segment_ids=seen_ids,
        q_features=q_features,
        kv_features=None if kv_features is None else own(features),
        sink=encoding.sink(),
    )
    return out, keys, values, features

  # The contents of empty slots must not matter.
  sizes = (*2 * [HEADS * HEAD_DIM], CASES[name].encoding.key_features)
  slots = [jnp.full((1, *SHAPE[:2], size), jnp.nan) for size in sizes]
  for start in range(0, LENGTH, 6):
    part = slice(start, start + 6)
    out, *slots = step(inputs()[:, part], start, *slots)
    np.testing.assert_allclose(out, whole[:, part], atol=2e-5)


@pytest.mark.parametrize(
    "name",
    ["t5", "kerple_log", "fire", "fox", "transformer_xl", "cope", "dape_v2_t5"],
)
def test_both_directions(name):
  """Bidirectional attention, as encoders use it."""
  reference = reference_in_float64(name, causal=False)
  run = program(name, "chunked", causal=False)
  arguments = inputs(), POSITIONS, IDS, cotangent()
  assert_equals(reference(*arguments), *run(parameters(name), *arguments))
