"""The encoder, post-LayerNorm and other settings not in the papers' decoder."""

import functools

import jax
import numpy as np
import pytest
from numpy_transformer import expected_logits

from dape_jax.config import ModelConfig
from dape_jax.models import Transformer

VOCAB = 11


def tiny(encoding="nope", **changes):
  values = dict(
      vocab_size=VOCAB,
      num_layers=2,
      width=16,
      num_heads=2,
      encoding=encoding,
      causal=False,
      norm="post",
      activation="relu",
      num_outputs=5,
      dtype="float32",
  )
  return Transformer(ModelConfig(**values | changes))


def shapes(model):
  tokens = jax.ShapeDtypeStruct((1, 1), np.int32)
  variables = jax.eval_shape(model.init, jax.random.key(0), tokens)
  return {
      jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape
      for path, leaf in jax.tree_util.tree_leaves_with_path(variables["params"])
  }


@functools.cache
def random_params(model):
  """Returns random float32 parameters, none of them at its initial value."""
  means = {"scale": 1.0, "r1": 1.0, "r2": 1.0}
  rng = np.random.default_rng(0)
  params = {}
  for path, shape in shapes(model).items():
    *parents, name = path.split("/")
    inner = params
    for parent in parents:
      inner = inner.setdefault(parent, {})
    inner[name] = np.float32(rng.normal(means.get(name, 0), 0.4, shape))
  return params


@functools.cache
def jitted(model):
  return jax.jit(model.apply)


def read(model, tokens, segment_ids=None, positions=None):
  """Returns logits as NumPy; one compilation per shape."""
  if segment_ids is None:
    segment_ids = np.ones_like(tokens)
  if positions is None:
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
  variables = {"params": random_params(model)}
  logits = jitted(model)(variables, tokens, segment_ids, np.int32(positions))
  return np.asarray(logits)


def random_tokens(*shape):
  return np.random.default_rng(1).integers(0, VOCAB, shape, dtype=np.int32)


@pytest.mark.parametrize(
    "encoding, changes",
    [
        ("kerple_log", {}),
        # The papers' decoder.
        ("kerple_log", dict(causal=True, norm="pre", activation="gelu")),
    ],
)
def test_logits_match_numpy(encoding, changes):
  model = tiny(encoding, **changes)
  tokens = random_tokens(2, 9)
  segment_ids = np.int32([[1] * 7 + [0] * 2, [1] * 4 + [2] * 5])
  positions = np.int32([[0, 3, 4, 8, 9, 20, 31, 0, 0], [0, 1, 5, 7] + [2] * 5])
  positions[1, 4:] += np.arange(5) * 3
  expected = expected_logits(
      model.config, random_params(model), tokens, segment_ids, positions
  )
  used = segment_ids > 0
  logits = read(model, tokens, segment_ids, positions)
  assert logits.dtype == np.float32 and logits.shape == (2, 9, 5)
  assert expected[used].std(axis=0).min() > 0.3
  np.testing.assert_allclose(logits[used], expected[used], atol=2e-5)


def test_padding_and_other_segments_have_no_effect():
  model = tiny("kerple_log")
  tokens = random_tokens(1, 9).repeat(2, axis=0)
  # The same tokens in the middle of a row, and alone at its beginning.
  tokens[1, :4] = tokens[1, 3:7]
  segment_ids = np.int32([[2, 2, 2, 1, 1, 1, 1, 0, 0], [1] * 4 + [0] * 5])
  positions = np.int32([[0, 1, 2, 0, 1, 2, 3, 0, 0], [0, 1, 2, 3] + [0] * 5])
  logits = read(model, tokens, segment_ids, positions)
  others = segment_ids != 1
  changed = np.where(others, (tokens + 1) % VOCAB, tokens)
  changed_logits = read(model, changed, segment_ids, positions)
  np.testing.assert_array_equal(changed_logits[~others], logits[~others])
  np.testing.assert_allclose(logits[0, 3:7], logits[1, :4], atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_encoder_attends_to_later_tokens_and_decoder_does_not(causal):
  changes = dict(causal=True, norm="pre", activation="gelu") if causal else {}
  model = tiny("kerple_log", **changes)
  tokens = random_tokens(1, 9).repeat(2, axis=0)
  tokens[1, 5] = (tokens[1, 5] + 1) % VOCAB
  logits = read(model, tokens)
  difference = abs(logits[0] - logits[1]).max(axis=-1)
  if causal:
    assert (difference[:5] < 1e-6).all()
    assert (difference[5:] > 1e-3).all()
  else:
    assert (difference > 1e-3).all()


def test_encoder_without_positions_is_permutation_equivariant():
  tokens = random_tokens(1, 9)
  order = np.random.default_rng(2).permutation(9)
  both = np.concatenate([tokens[:, order], tokens])
  permuted, logits = read(tiny("nope"), both)
  np.testing.assert_allclose(permuted, logits[order], atol=1e-5)
  # Biases break the symmetry.
  permuted, logits = read(tiny("kerple_log"), both)
  assert abs(permuted - logits[order]).max() > 0.01


def test_encoder_rejects_a_cache():
  model = tiny("kerple_log")
  cache = model.empty_cache(1, 4)
  with pytest.raises(ValueError, match="an encoder has no cache"):
    model.apply(
        {"params": random_params(model)}, random_tokens(1, 2), cache=cache
    )


def test_initial_values_of_haiku():
  """Truncated at two std; embeddings 0.02 sqrt(width) as in the code."""
  model = tiny(init="ruoss", width=128, num_heads=8, mlp_width=64)
  params = jax.jit(model.init)(jax.random.key(0), random_tokens(1, 1))["params"]
  layers = params["layers"]
  # Standard deviation of a unit normal truncated at two std.
  cut = 0.8796
  for values, std in (
      (params["embedding"], 0.02 * 128**0.5),
      (params["head"]["kernel"], 128**-0.5),
      (layers["attention"]["query"]["kernel"], 128**-0.5),
      (layers["attention"]["output"]["kernel"], 128**-0.5),
      (layers["mlp"]["up"]["kernel"], 128**-0.5),
      (layers["mlp"]["down"]["kernel"], 64**-0.5),
  ):
    values = np.asarray(values)
    assert 1.9 * std < abs(values).max() <= 2 * std
    # Three standard deviations of the sample standard deviation.
    noise = 3 / (2 * values.size) ** 0.5
    np.testing.assert_allclose(values.std(), cut * std, rtol=noise)
  for name in ("query", "key", "value", "output"):
    assert not layers["attention"][name]["bias"].any()


def test_names_and_shapes_of_parameters():
  decoder = {
      "embedding": (VOCAB, 16),
      "final_norm/bias": (16,),
      "final_norm/scale": (16,),
      "head/kernel": (16, VOCAB),
      "layers/attention/encoding/r1": (2, 2),
      "layers/attention/encoding/r2": (2, 2),
      "layers/attention/key/bias": (2, 2, 8),
      "layers/attention/key/kernel": (2, 16, 2, 8),
      "layers/attention/output/bias": (2, 16),
      "layers/attention/output/kernel": (2, 2, 8, 16),
      "layers/attention/query/bias": (2, 2, 8),
      "layers/attention/query/kernel": (2, 16, 2, 8),
      "layers/attention/value/bias": (2, 2, 8),
      "layers/attention/value/kernel": (2, 16, 2, 8),
      "layers/attention_norm/bias": (2, 16),
      "layers/attention_norm/scale": (2, 16),
      "layers/mlp/down/bias": (2, 16),
      "layers/mlp/down/kernel": (2, 64, 16),
      "layers/mlp/up/bias": (2, 64),
      "layers/mlp/up/kernel": (2, 16, 64),
      "layers/mlp_norm/bias": (2, 16),
      "layers/mlp_norm/scale": (2, 16),
  }
  defaults = ModelConfig(
      vocab_size=VOCAB,
      num_layers=2,
      width=16,
      num_heads=2,
      encoding="kerple_log",
  )
  assert shapes(Transformer(defaults)) == decoder
  encoder = {k: v for k, v in decoder.items() if "final_norm" not in k}
  encoder["head/kernel"] = (16, 5)
  assert shapes(tiny("kerple_log")) == encoder
