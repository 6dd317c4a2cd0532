"""Modifiers, sums and DAPE's forms against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dape_jax
from dape_jax import encodings
from dape_jax.attention import num_visible_keys

LENGTH, HEADS, HEAD_DIM = 9, 2, 4


def inputs():
  shape = (3, 1, LENGTH, HEADS, HEAD_DIM)
  return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def attended(encoding, params, window=None):
  query, key, value = inputs()
  module = encoding.bind({"params": params})
  return dape_jax.attend(module, query, query, key, value, window=window)[0]


def expected(scores_of, sink=None, window=LENGTH):
  """Returns causal attention [T, N, H] of modified scores [N, T, S]."""
  query, key, value = np.float64(inputs())[:, 0]
  scores = scores_of(np.einsum("tnh,snh->nts", query, key) / HEAD_DIM**0.5)
  distances = np.arange(LENGTH)[:, None] - np.arange(LENGTH)
  visible = (distances >= 0) & (distances < window)
  weights = np.exp(scores) * visible
  total = weights.sum(-1, keepdims=True)
  if sink is not None:
    total += np.exp(sink)[:, None, None]
  return np.einsum("nts,snh->tnh", weights / total, value)


SLOPES = encodings.alibi_slopes(HEADS)[:, None, None]
ALIBI = -SLOPES * np.abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH))


@pytest.mark.parametrize("window", [None, 3])
def test_ssmax(window):
  s = np.float32([0.5, -0.3])
  num_keys = np.minimum(np.arange(LENGTH) + 1, window or LENGTH)
  factors = s[:, None] * np.log(num_keys)
  np.testing.assert_allclose(
      attended(encodings.SSMax(dape_jax.Alibi(HEADS)), {"s": s}, window),
      expected(
          lambda x: factors[..., None] * x + ALIBI, window=window or LENGTH
      ),
      atol=2e-6,
  )


def test_log_n_has_no_effect_up_to_the_training_length():
  factors = np.maximum(1, np.log(np.arange(LENGTH) + 1) / np.log(4))
  assert (factors[:4] == 1).all() and factors[4] > 1
  encoding = encodings.LogN(dape_jax.Alibi(HEADS), train_length=4)
  np.testing.assert_allclose(
      attended(encoding, {}),
      expected(lambda x: factors[:, None] * x + ALIBI),
      atol=2e-6,
  )


def test_learned_sink():
  sink = np.float32([0.7, -2.0])
  np.testing.assert_allclose(
      attended(encodings.LearnedSink(dape_jax.Nope(HEADS)), {"logit": sink}),
      expected(lambda x: x, sink),
      atol=2e-6,
  )


def test_soft_cap_bounds_the_scores_with_their_bias():
  encoding = encodings.SoftCap(dape_jax.Alibi(HEADS), cap=0.8)
  np.testing.assert_allclose(
      attended(encoding, {}),
      expected(lambda x: 0.8 * np.tanh((x + ALIBI) / 0.8)),
      atol=2e-6,
  )


def test_sum():
  params = {
      "r1": jnp.array([1.0, 0.5]),
      "r2": jnp.array([0.2, 2.0]),
  }
  encoding = dape_jax.Sum(dape_jax.Alibi(HEADS), dape_jax.KerpleLog(HEADS))
  r1, r2 = (np.float64(params[k])[:, None, None] for k in ("r1", "r2"))
  kerple = -r1 * np.log(1 + r2 * -ALIBI / SLOPES)
  np.testing.assert_allclose(
      attended(encoding, {"b": params}),
      expected(lambda x: x + ALIBI + kerple),
      atol=2e-6,
  )


@pytest.mark.parametrize(
    "form", ["concat_residual", "concat", "add_residual", "static"]
)
def test_forms_of_dape(form):
  encoding = dape_jax.Dape(dape_jax.Alibi(HEADS), width=5, form=form)
  params = encoding.init(jax.random.key(0), method="score_mod")["params"]
  hidden, bias, out = (
      np.float64(params[f"{k}"])
      for k in ("hidden_kernel", "hidden_bias", "output_kernel")
  )

  def modified(scores):
    read = {
        "concat_residual": np.concatenate([scores, ALIBI]),
        "concat": np.concatenate([scores, ALIBI]),
        "add_residual": scores + ALIBI,
        "static": ALIBI,
    }[form]
    x = np.einsum("cts,cm->mts", read, hidden) + bias[:, None, None]
    f = np.einsum("mts,mn->nts", np.where(x > 0, x, 0.01 * x), out)
    return scores + f + (0 if form == "concat" else ALIBI)

  np.testing.assert_allclose(
      attended(encoding, params), expected(modified), atol=2e-6
  )
  # The control starts as the full network without the scores' rows.
  fan_in = HEADS if form == "add_residual" else 2 * HEADS
  assert 0.5 * fan_in**-0.5 < np.abs(hidden).max() <= fan_in**-0.5


@pytest.mark.parametrize(
    "positions", [[0, 0, 1, 2, 0, 0], [0, 1, 2, 3, 4, 5]], ids=str
)
def test_numbers_of_visible_keys(positions):
  """Packed documents at any positions; padding attends to nothing."""
  ids, positions = jnp.array([[0, 3, 3, 3, 5, 0]]), jnp.array(positions)
  count = lambda causal, window: num_visible_keys(
      q_positions=positions,
      kv_positions=positions,
      q_segment_ids=ids,
      kv_segment_ids=ids,
      causal=causal,
      window=window,
  )[0].tolist()
  assert count(True, None) == [0, 1, 2, 3, 1, 0]
  assert count(True, 2) == [0, 1, 2, 2, 1, 0]
  assert count(False, None) == [0, 3, 3, 3, 1, 0]
  assert count(False, 2) == [0, 2, 3, 2, 1, 0]


def test_position_limits_reach_through_wrappers():
  limit = lambda name, **options: encodings.make(
      name, num_heads=2, **options
  ).position_limit()
  assert limit("learned", max_length=70, sink=True) == 70
  assert limit("xpos", ssmax=True) == encodings.XPos(2).last_position() + 1
  assert limit("dape_rope") is None
  learned = encodings.Learned(2, max_length=9)
  assert dape_jax.Sum(learned, dape_jax.Alibi(2)).position_limit() == 9
