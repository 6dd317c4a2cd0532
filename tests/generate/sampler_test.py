"""`generate` matches the full forward pass, in any batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dape_jax.config import ModelConfig
from dape_jax.errors import ConfigError
from dape_jax.generate import sampler
from dape_jax.generate.sampler import generate
from dape_jax.models import Transformer

VOCAB = 16
NEW = 20
LENGTHS = (5, 1, 9)


@pytest.fixture(scope="module", autouse=True)
def _compile_fast():
  jax.config.update("jax_disable_most_optimizations", True)
  yield
  jax.config.update("jax_disable_most_optimizations", False)


def tiny(encoding, **changes):
  values = dict(
      vocab_size=VOCAB,
      num_layers=2,
      width=16,
      num_heads=2,
      encoding=encoding,
      dtype="float32",
  )
  return Transformer(ModelConfig(**values | changes))


MODEL = tiny("dape_v2_fox")


@functools.cache
def random_params(model):
  """Returns random parameters, committed to a device like restored ones."""
  tokens = jnp.zeros((1, 1), jnp.int32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
  rng = np.random.default_rng(1)
  # Small biases: large ones would make all tokens similar.
  mean_and_size = {"bias": (0, 0.1), "scale": (1, 0.1)}

  def draw(path, shape):
    mean, size = mean_and_size.get(path[-1].key, (0, 1))
    return np.float32(rng.normal(mean, size, shape.shape))

  params = jax.tree_util.tree_map_with_path(draw, shapes)
  return jax.device_put(params, jax.devices()[0])


def prompts_of(lengths=LENGTHS, seed=0):
  rng = np.random.default_rng(seed)
  return [rng.integers(0, VOCAB, length) for length in lengths]


def write(prompts=None, model=MODEL, params=None, **changes):
  return generate(
      model,
      params or random_params(model),
      prompts or prompts_of(),
      **{"max_new_tokens": NEW, "chunk": 4} | changes,
  )


@functools.cache
def greedy(model):
  """Returns the continuations of `prompts_of()`; checks compilations."""
  programs = sampler._prefill_chunk, sampler._decode
  before = [program._cache_size() for program in programs]
  written = write(model=model)
  # Two prefill chunks and two decoding calls share one program each.
  assert [p._cache_size() for p in programs] == [n + 1 for n in before]
  assert [len(row) for row in written] == [NEW] * len(LENGTHS)
  return written


def assert_rows_equal(actual, expected):
  assert len(actual) == len(expected)
  for actual_row, expected_row in zip(actual, expected):
    np.testing.assert_array_equal(actual_row, expected_row)


@pytest.mark.parametrize(
    "model",
    [
        MODEL,
        tiny("rope_dynamic_ntk,fire", encoding_options={"train_length": 8}),
    ],
    ids=lambda model: model.config.encoding,
)
def test_greedy_takes_the_most_likely_token_of_the_full_pass(model):
  """Rows of different lengths through the cache match unpadded text."""
  written = greedy(model)
  texts = [np.concatenate(row) for row in zip(prompts_of(), written)]
  longest = max(map(len, texts))
  tokens = np.zeros((len(texts), longest), np.int32)
  for row, text in zip(tokens, texts):
    row[: len(text)] = text  # later tokens are not visible
  full = jax.jit(model.at_length(longest).apply)
  logits = full({"params": random_params(model)}, tokens)
  for row, prompt, new in zip(logits, prompts_of(), written):
    likeliest = row[len(prompt) - 1 :][:NEW].argmax(-1)
    np.testing.assert_array_equal(new, likeliest)
  assert len(set(np.concatenate(written).tolist())) > VOCAB // 3


def test_prompt_alone_matches_prompt_in_a_batch():
  for prompt, expected in zip(prompts_of(), greedy(MODEL)):
    assert_rows_equal(write([prompt]), [expected])


def test_chunk_size_does_not_change_tokens():
  assert_rows_equal(write(chunk=3), greedy(MODEL))


def test_top_k_or_top_p_of_one_token_is_greedy():
  for cut in ({"top_k": 1}, {"top_p": 1e-9}, {"top_p": 1e-60}):
    assert_rows_equal(write(temperature=5.0, **cut), greedy(MODEL))
  for temperature in (1e-37, 1e-60):
    assert_rows_equal(write(temperature=temperature), greedy(MODEL))


def test_sampled_row_is_independent_of_the_others():
  drawn = functools.partial(write, temperature=5.0)
  one, two = prompts_of(), prompts_of((9, 3, 2), seed=1)
  two[1] = one[1]
  written = drawn(one)
  np.testing.assert_array_equal(drawn(two)[1], written[1])
  assert_rows_equal(drawn(one), written)
  # Each row and each seed has its own random numbers.
  same = drawn([one[0]] * 3)
  assert len({tuple(row.tolist()) for row in same}) == 3
  assert not np.array_equal(drawn(one, seed=2**32 - 1)[1], written[1])


def test_stop_tokens_end_only_their_row():
  full = greedy(MODEL)
  stop = int(full[0][7])
  seen = []
  written = write(stop_tokens=[stop], on_tokens=seen.append)
  for row, whole in zip(written, full):
    found = np.flatnonzero(whole == stop)
    end = found[0] + 1 if found.size else NEW
    np.testing.assert_array_equal(row, whole[:end])
  assert len(written[0]) <= 8 and len(set(map(len, written))) > 1
  # The callback received each token as it was generated.
  assert len(seen) == max(map(len, written))
  assert all(len(new) <= 1 for news in seen for new in news)
  assert_rows_equal([np.concatenate(row) for row in zip(*seen)], written)


def test_all_rows_stop_or_there_are_none():
  written = write(stop_tokens=range(VOCAB))
  assert_rows_equal(written, [row[:1] for row in greedy(MODEL)])
  assert generate(MODEL, {}, [], max_new_tokens=1) == []


@pytest.mark.parametrize("temperature", [0.0, 5.0])
def test_padding_ids_of_the_head_are_excluded(temperature):
  written = write(temperature=temperature, vocab_size=5)
  assert np.concatenate(written).max() < 5


def test_other_lengths_and_settings_do_not_recompile():
  greedy(MODEL)
  compiled = []

  def listen(event, seconds, **_):
    if event.endswith("backend_compile_duration"):
      compiled.append(event)

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    jax.jit(lambda x: x + 1)(np.zeros(7))
    assert compiled, "no compilation was recorded"
    compiled.clear()
    write(
        prompts_of((4, 11, 7)),
        max_new_tokens=9,
        temperature=0.7,
        top_k=3,
        top_p=0.9,
        seed=3,
        stop_tokens=[1, 2],
    )
    write(prompts_of((2, 6, 3)), max_new_tokens=21, on_tokens=lambda _: None)
    assert not compiled
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)


def test_random_numbers_of_steps_rows_and_seeds_are_independent():
  """Uses a model with the same logits everywhere."""
  params = random_params(MODEL)
  head = params["head"]["kernel"]
  norm = {"scale": jnp.zeros(16), "bias": head[:, 0] / 8}
  params = params | {"final_norm": jax.device_put(norm, jax.devices()[0])}
  written = np.stack(
      [write(params=params, temperature=2.0, seed=seed) for seed in range(30)]
  )
  weights = np.exp(np.float64(norm["bias"] @ head) / 2)
  probs = weights / weights.sum()
  frequencies = np.bincount(written.ravel(), minlength=VOCAB) / written.size
  deviations = np.sqrt(probs * (1 - probs) / written.size)
  assert (np.abs(frequencies - probs) <= 4 * deviations).all()
  # Frequency of equal neighbors along seeds, rows and steps.
  expected = (probs**2).sum()
  for axis in range(3):
    equal = np.diff(written, axis=axis) == 0
    assert abs(equal.mean() - expected) < 4 * np.sqrt(expected / equal.size)


def test_non_finite_logits_raise():
  params = random_params(MODEL)
  head = jax.tree.map(lambda x: x.at[0, 0].set(jnp.nan), params["head"])
  with pytest.raises(ConfigError, match="logits are not finite"):
    write(params=params | {"head": head})


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0: must be 1 or more"),
        ({"chunk": 0}, "chunk=0: must be 1 or more"),
        ({"stop_tokens": [16]}, "stop_tokens has id 16: must be 0 to"),
        ({"prompts": [[1], []]}, r"prompts\[1\] is empty: give at"),
        ({"prompts": [[1, -1]]}, r"prompts\[0\] has id -1"),
        (
            {"prompts": [[0.5]]},
            r"prompts\[0\]: must be a 1-D array of integers",
        ),
        ({"max_new_tokens": 9}, "max_new_tokens=9 after a prompt of 8: enc"),
    ],
)
def test_invalid_arguments_are_rejected_before_anything_runs(changes, message):
  arguments = {"prompts": [np.zeros(8, int)], "max_new_tokens": 2} | changes
  model = tiny("learned", encoding_options={"max_length": 15})
  with pytest.raises(ConfigError, match=message):
    generate(model, {}, arguments.pop("prompts"), **arguments)


@pytest.mark.parametrize("changes", [{"causal": False}, {"num_outputs": 3}])
def test_models_that_cannot_generate_are_rejected(changes):
  with pytest.raises(ConfigError, match="generation needs a decoder"):
    write(model=tiny("rope", **changes), params={"not": "used"})
