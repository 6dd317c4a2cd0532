"""The decoder: sizes, initial values, cache, padding and packing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dape_jax.attention import grow_cache
from dape_jax.config import ModelConfig
from dape_jax.errors import ConfigError
from dape_jax.models import Transformer
from dape_jax.models.layer_encodings import check_positions

VOCAB = 32
# One encoding for each place where encodings act: embeddings, queries and keys,
# scores, cached features, and layers with different encodings.
NAMES = (
    "learned",
    "rope",
    "fire",
    "fox",
    "cope",
    "dape_v2_fox",
    "rope,nope,transformer_xl",
)


def tiny(encoding="dape_kerple_log", **changes):
  values = dict(
      vocab_size=VOCAB,
      num_layers=2,
      width=16,
      num_heads=2,
      encoding=encoding,
      dtype="float32",
  )
  return Transformer(ModelConfig(**values | changes))


def random_tokens(seed, *shape):
  return jax.random.randint(jax.random.key(seed), shape, 0, VOCAB)


@pytest.fixture(scope="module", autouse=True)
def _compile_fast():
  jax.config.update("jax_disable_most_optimizations", True)
  yield
  jax.config.update("jax_disable_most_optimizations", False)


@functools.cache
def jitted(model):
  return jax.jit(model.apply)


@functools.cache
def initialized(model):
  # Larger than the initial values, so that attention is not uniform.
  init = jax.jit(model.init)
  params = init(jax.random.key(0), random_tokens(0, 1, 1))["params"]
  return jax.tree.map(lambda x: 2 * x if x.ndim > 1 else x, params)


def num_parameters(**config):
  model = Transformer(ModelConfig(vocab_size=50_304, **config))
  shapes = jax.eval_shape(model.init, jax.random.key(0), random_tokens(0, 1, 1))
  return sum(x.size for x in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
    "encoding, shared, extra",
    [
        ("nope", False, 0),
        ("kerple_log", True, 24),
        ("kerple_log", False, 12 * 24),
        # Released: 1,196 and 3,500 per layer, with 12 output biases.
        ("dape_alibi", False, 12 * 1184),
        ("dape_v2_alibi", False, 12 * 3488),
        ("dape_v2_fire", True, 3488 + 462),
    ],
)
def test_parameters_of_the_papers_125m_model(encoding, shared, extra):
  """162,322,944 plus the encoding's (KERPLE's and DAPE's released configs)."""
  total = num_parameters(encoding=encoding, share_encoding=shared)
  assert total == 162_322_944 + extra


@pytest.mark.parametrize(
    "init, inner, output",
    [
        ("dape", (2 / (5 * 256)) ** 0.5, 2 / (3 * 256**0.5)),
        ("kerple", 0.02, 0.02 / 6**0.5),
    ],
)
def test_initial_values(init, inner, output):
  model = tiny(init=init, width=256, num_heads=8, num_layers=3, vocab_size=512)
  init = jax.jit(model.init)
  params = init(jax.random.key(0), random_tokens(0, 1, 1))["params"]
  layers = params["layers"]
  for kernel, expected in (
      (params["embedding"], inner),
      (params["head"]["kernel"], inner),
      (layers["attention"]["query"]["kernel"], inner),
      (layers["mlp"]["up"]["kernel"], inner),
      (layers["attention"]["output"]["kernel"], output),
      (layers["mlp"]["down"]["kernel"], output),
  ):
    np.testing.assert_allclose(kernel.std(), expected, rtol=0.02)
  assert not layers["attention"]["query"]["bias"].any()
  first, second = layers["mlp"]["up"]["kernel"][:2]
  assert not np.array_equal(first, second)


def apply_in_chunks(model, params, tokens, chunk):
  batch, length = tokens.shape
  step = lambda tokens, cache: jitted(model)(
      {"params": params}, tokens, cache=cache
  )
  cache = model.empty_cache(batch, length + 5)
  parts = []
  for start in range(0, length, chunk):
    logits, cache = step(tokens[:, start : start + chunk], cache)
    parts.append(logits)
  return jnp.concatenate(parts, axis=1)


@pytest.mark.parametrize(
    "chunk", [1, 43, pytest.param(128, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("name", NAMES)
def test_chunks_through_the_cache_equal_the_full_pass(name, chunk):
  model = tiny(name, num_layers=3 if "," in name else 2)
  params = initialized(model)
  tokens = random_tokens(1, 2, 129)
  full = jitted(model)({"params": params}, tokens)
  assert float(full.std()) > 0.1
  # A different summation order: up to 2e-5 on logits of 1.3.
  np.testing.assert_allclose(
      apply_in_chunks(model, params, tokens, chunk), full, atol=1e-4
  )


def test_layers_take_encodings_and_windows_in_turn():
  model = tiny(
      "kerple_log,nope",
      num_layers=4,
      windows=(0, 3),
      encoding_options={"sink": True},
  )
  params = initialized(model)
  layers = params["layers"]
  assert set(layers) == {"blocks_0", "blocks_1"}
  encodings = [layers[b]["attention"]["encoding"] for b in sorted(layers)]
  assert encodings[0]["base"]["r1"].shape == (2, 2)  # layers and heads
  assert set(encodings[1]) == {"logit"}
  tokens = random_tokens(1, 1, 12)

  def gradient(model):
    def last(embedded):
      params_ = params | {"embedding": embedded}
      return model.apply({"params": params_}, tokens)[0, -1].sum()

    return jax.jit(jax.grad(last))(params["embedding"])

  assert gradient(model).any(1).sum() == len(set(tokens[0].tolist()))
  # Four layers with two tokens of context each reach eight tokens back.
  windowed = tiny(
      "kerple_log,nope",
      num_layers=4,
      windows=(3, 3),
      encoding_options={"sink": True},
  )
  reached = np.flatnonzero(gradient(windowed).any(1))
  assert set(reached) == set(tokens[0, -9:].tolist())


def test_options_reach_the_encodings_that_have_them():
  options = {"threshold": 40.0, "rope_theta": 100.0}
  model = tiny("fire,rope", encoding_options=options)
  assert np.isfinite(
      jitted(model)({"params": initialized(model)}, random_tokens(1, 1, 4))
  ).all()
  with pytest.raises(ConfigError, match='no option "treshold"'):
    initialized(tiny("fire,rope", encoding_options={"treshold": 1.0}))
  with pytest.raises(ConfigError, match="an absolute encoding acts on"):
    initialized(tiny("learned,rope"))


@pytest.mark.parametrize("name", ["rope", "fox", "dape_v2_fire"])
def test_shared_encodings_have_one_set_of_parameters(name):
  model = tiny(name, share_encoding=True)
  params = initialized(model)
  assert "encoding" not in params["layers"]["attention"]
  assert ("encoding" in params) == (name != "rope")
  tokens = random_tokens(1, 2, 9)
  full = jitted(model)({"params": params}, tokens)
  np.testing.assert_allclose(
      apply_in_chunks(model, params, tokens, 3), full, atol=1e-4
  )
  if name == "rope":
    return
  # Equal to giving each layer a copy.
  layers = params["layers"]
  copies = jax.tree.map(lambda x: jnp.stack([x, x]), params["encoding"])
  own = params | {
      "layers": layers
      | {"attention": layers["attention"] | {"encoding": copies}}
  }
  del own["encoding"]
  np.testing.assert_allclose(
      jitted(tiny(name))({"params": own}, tokens), full, atol=5e-5
  )


@pytest.mark.parametrize("name", NAMES)
def test_padding_on_either_side_changes_nothing(name):
  """Left-padded, right-padded and unpadded rows, and packed rows."""
  model = tiny(name, num_layers=3 if "," in name else 2)
  params = {"params": initialized(model)}
  first, second = np.asarray(random_tokens(2, 2, 6))
  pad = np.full(3, 7)
  rows = [
      [(pad, 0), (pad, 0), (first, 1), (pad, 0)],
      [(first, 1), (pad, 0), (pad, 0), (pad, 0)],
      [(second, 4), (first, 2), (pad, 0)],
  ]
  tokens = np.stack([np.concatenate([t for t, _ in row]) for row in rows])
  ids = [[np.full(len(t), s) for t, s in row] for row in rows]
  positions = [[np.arange(len(t)) for t, _ in row] for row in rows]
  left, right, packed = jitted(model)(
      params,
      tokens,
      np.stack([np.concatenate(row) for row in ids]),
      np.stack([np.concatenate(row) for row in positions]),
  )
  alone, second_alone = jitted(model)(params, np.stack([first, second]))
  np.testing.assert_allclose(left[6:12], alone, atol=5e-5)
  np.testing.assert_allclose(right[:6], alone, atol=5e-5)
  np.testing.assert_allclose(packed[6:12], alone, atol=5e-5)
  np.testing.assert_allclose(packed[:6], second_alone, atol=5e-5)
  assert np.isfinite(packed).all()


@pytest.mark.parametrize("name", ["dape_v2_kerple_log", "fire"])
def test_garbage_in_unused_slots_has_no_effect(name):
  model = tiny(name)
  params = {"params": initialized(model)}
  tokens = random_tokens(1, 1, 6)
  clean = model.empty_cache(1, 9)
  dirty = clean.replace(
      keys=jnp.full_like(clean.keys, jnp.nan),
      values=jnp.full_like(clean.values, jnp.inf),
      positions=jnp.full_like(clean.positions, 123_456_789),
  )
  for part in (tokens[:, :3], tokens[:, 3:]):
    expected, clean = jitted(model)(params, part, cache=clean)
    logits, dirty = jitted(model)(params, part, cache=dirty)
    np.testing.assert_array_equal(logits, expected)


def test_cache_overflow_raises_or_yields_nan():
  """An error outside jit, NaN under jit, never a wrong number."""
  model = tiny("rope")
  params = {"params": initialized(model)}
  tokens = random_tokens(1, 1, 5)
  with pytest.raises(ValueError, match="4 slots holds 0; 5 more do not fit"):
    model.apply(params, tokens, cache=model.empty_cache(1, 4))

  @jax.jit
  def step(tokens, cache):
    return model.apply(params, tokens, cache=cache)

  logits, cache = step(tokens[:, :3], model.empty_cache(1, 4))
  assert np.isfinite(logits).all()
  logits, cache = step(tokens[:, 2:], cache)
  assert np.isnan(logits).all()


def test_overflowed_cache_does_not_grow():
  model = tiny("rope")
  cache = model.empty_cache(1, 4).replace(filled=jnp.int32(5))
  with pytest.raises(ValueError, match="5 tokens were appended to 4 slots"):
    grow_cache(cache, 8)


@pytest.mark.parametrize("bad", [-1, VOCAB, 999])
def test_id_outside_the_vocabulary_yields_nan(bad):
  """No other embedding row is used instead."""
  model = tiny("rope")
  tokens = random_tokens(1, 2, 5)
  logits = jitted(model)(
      {"params": initialized(model)}, tokens.at[0, 2].set(bad)
  )
  assert np.isnan(logits[0, 2:]).all()
  assert np.isfinite(logits[1]).all()


def test_remat_changes_no_gradient():
  tokens = random_tokens(1, 2, 8)
  params = initialized(tiny())

  def gradient(model):
    def total(params):
      return jnp.sum(jnp.sin(model.apply({"params": params}, tokens)))

    return jax.jit(jax.grad(total))(params)

  expected = gradient(tiny())
  for remat in ("dots", "full"):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4),
        gradient(tiny(remat=remat)),
        expected,
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"num_layers": 1},
        {"num_heads": 1},
        {"width": 21, "num_heads": 3, "encoding": "dape_v2_alibi"},
        {"num_heads": 4, "num_kv_heads": 2},
        {"mlp_width": 24},
    ],
)
def test_odd_sizes(changes):
  """With a single token, too."""
  model = tiny(**changes)
  params = {"params": initialized(model)}
  tokens = random_tokens(1, 2, 9)
  logits = jitted(model)(params, tokens)
  assert logits.shape == (2, 9, VOCAB)
  first = jitted(model)(params, tokens[:, :1])
  np.testing.assert_allclose(first, logits[:, :1], atol=5e-5)
  _, cache = jax.eval_shape(
      model.apply, params, tokens, cache=model.empty_cache(2, 9)
  )
  kv_heads = changes.get("num_kv_heads") or model.config.num_heads
  head_dim = model.config.width // model.config.num_heads
  assert cache.keys.shape == (
      model.config.num_layers,
      2,
      9,
      kv_heads * head_dim,
  )


def test_bfloat16_computes_with_float32_parameters_and_logits():
  model = tiny(dtype="bfloat16")
  params = initialized(model)
  assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
  tokens = random_tokens(1, 2, 9)
  logits = jitted(model)({"params": params}, tokens)
  assert logits.dtype == jnp.float32
  exact = jitted(tiny())({"params": params}, tokens)
  np.testing.assert_allclose(logits, exact, atol=0.2)
  assert model.empty_cache(1, 2).keys.dtype == jnp.bfloat16


def test_positions_beyond_a_table_are_rejected_before_a_run():
  model = tiny("learned", encoding_options={"max_length": 16})
  check_positions(model.config, 16, "--lengths=16")
  with pytest.raises(
      ConfigError, match='--lengths=17: encoding "learned" ends'
  ):
    check_positions(model.config, 17, "--lengths=17")


def test_at_length_never_goes_below_the_training_length():
  model = tiny("rope_dynamic_ntk", encoding_options={"length": 64})
  assert model.at_length(8).config == model.config
  assert model.at_length(99).config.encoding_options == {"length": 99}
  assert tiny("rope").at_length(99) == tiny("rope")


def test_ssmax_counts_the_keys_of_a_left_padded_row():
  """Default positions count the padding."""
  model = tiny("nope", encoding_options={"ssmax": True})
  params = {"params": initialized(model)}
  tokens = random_tokens(1, 1, 6)
  ids = jnp.int32([[0, 0, 0, 1, 1, 1]])
  padded = jitted(model)(params, tokens, ids)
  alone = jitted(model)(params, tokens[:, 3:])
  np.testing.assert_allclose(padded[:, 3:], alone, atol=1e-5)
