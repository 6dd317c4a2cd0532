"""Token selection against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dape_jax.errors import ConfigError
from dape_jax.generate.next_token import cut_logits, make_sampling, next_token

SETTINGS = dict(
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    seed=0,
    stop_tokens=(),
    num_allowed=None,
)


def cut_by_hand(logits, temperature, top_k, top_p):
  """Returns probabilities, [V] float64, adding the most likely tokens in turn."""
  logits = np.float64(logits) / temperature
  weights = np.exp(logits - logits.max())
  order = np.argsort(-logits, kind="stable")
  order = order[: top_k or len(order)]
  probs, total = np.zeros(len(logits)), 0.0
  for token in order:
    probs[token] = weights[token]
    total += weights[token] / weights[order].sum()
    if total >= top_p:
      break
  return probs / probs.sum()


_cut = jax.jit(lambda *args: jax.nn.softmax(cut_logits(*args)))


@settings(deadline=None)
@given(
    # Multiples of 1/8, to get ties.
    st.lists(st.integers(-40, 40), min_size=8, max_size=8),
    st.sampled_from([0.25, 0.5, 1.0, 2.0]),
    st.integers(0, 9),
    st.floats(0.01, 1.0),
)
def test_cut_logits_match_numpy(eighths, temperature, top_k, top_p):
  logits = np.float32(eighths) / 8
  args = np.float32(temperature), np.int32(top_k), np.float32(top_p)
  probs = np.asarray(_cut(logits, *args))
  # A sum at the threshold may be rounded to either side.
  nearby = (
      cut_by_hand(logits, temperature, top_k, top_p + change)
      for change in (0, -1e-5, 1e-5)
  )
  assert any(np.allclose(probs, by_hand, atol=1e-5) for by_hand in nearby)


def assert_as_frequent_as_likely(tokens, probs):
  tokens = np.asarray(tokens)
  frequencies = np.bincount(tokens, minlength=len(probs)) / tokens.size
  deviations = np.sqrt(probs * (1 - probs) / tokens.size)
  assert (np.abs(frequencies - probs) <= 4 * deviations).all()


_draw = jax.jit(jax.vmap(next_token, in_axes=(None, 0, None)))


@pytest.mark.parametrize(
    "temperature, top_k, top_p", [(1.0, 0, 1.0), (0.5, 0, 0.9), (2.0, 5, 0.8)]
)
def test_token_frequencies_match_probabilities(temperature, top_k, top_p):
  logits = np.random.default_rng(0).normal(size=8).astype(np.float32)
  cuts = dict(temperature=temperature, top_k=top_k, top_p=top_p)
  sampling = make_sampling(8, **SETTINGS | cuts)
  keys = jax.random.split(jax.random.key(1), 20_000)
  assert_as_frequent_as_likely(
      _draw(logits, keys, sampling), cut_by_hand(logits, **cuts)
  )


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"temperature": -0.5}, "temperature=-0.5: must be 0 to 1e30"),
        ({"temperature": float("nan")}, "temperature=nan: must be 0 to 1e30"),
        ({"temperature": float("inf")}, "temperature=inf: must be 0 to 1e30"),
        ({"temperature": 1e39}, "must be 0 to 1e30"),
        ({"top_k": -1}, "top_k=-1: must be 1 or more, or 0"),
        ({"top_p": 0.0}, "top_p=0.0: must be above 0 and up to 1"),
        ({"top_p": 1.5}, "top_p=1.5: must be above 0 and up to 1"),
        ({"seed": -1}, "seed=-1: must be 0 to"),
        ({"seed": 2**32}, "seed=4294967296: must be 0 to"),
        ({"num_allowed": 9}, "vocab_size=9: must be 1 to 8"),
        ({"stop_tokens": [8]}, "stop_tokens has id 8: must be 0 to 7"),
        (
            {"stop_tokens": [0.5]},
            "stop_tokens: must be a 1-D array of integers",
        ),
    ],
)
def test_wrong_settings(changes, message):
  with pytest.raises(ConfigError, match=message):
    make_sampling(8, **SETTINGS | changes)


def test_highest_temperature_samples_allowed_tokens_only():
  """top_k and top_p still distinguish logits; excluded tokens never occur."""
  hot = SETTINGS | {"temperature": 1e30, "top_k": 2, "num_allowed": 5}
  logits_V = jnp.arange(8.0)
  drawn = jax.vmap(next_token, (None, 0, None))(
      logits_V, jax.random.split(jax.random.key(0), 64), make_sampling(8, **hot)
  )
  assert set(drawn.tolist()) == {3, 4}
