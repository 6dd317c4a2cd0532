"""CoPE against the released code's numbers and plain float64 NumPy."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import token_cases

import dape_jax
from dape_jax.encodings.cope import Cope, interpolated
from dape_jax.interop import neox

FILES = sorted(
    (pathlib.Path(__file__).parents[1] / "golden").glob("cope_*.npz")
)
ENCODING = Cope(num_heads=token_cases.HEADS, max_position=4)


def test_all_files_are_here():
  assert len(FILES) == 2


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_golden(path):
  with np.load(path) as data:
    golden = {key: data[key] for key in data.files}
  meta = json.loads(str(golden["meta"]))
  tensors = {"pos_emb": golden["param.pos_emb"]}
  options = neox.encoding_options("cope", tensors)
  assert options == {"max_position": meta["npos_max"]}
  encoding = Cope(num_heads=meta["heads"], **options)
  params = neox.encoding_params("cope", tensors)
  qkv = [golden[name].transpose(0, 2, 1, 3) for name in "qkv"]
  cotangent = golden["cotangent"].transpose(0, 2, 1, 3)
  positions = jnp.arange(meta["length"])

  def objective(params, qkv, implementation):
    x = jnp.zeros((*qkv[0].shape[:2], 1))
    out = token_cases.attended(
        encoding,
        params,
        (x, *qkv),
        positions,
        implementation=implementation,
    )
    return jnp.sum(out * cotangent), out

  run = token_cases.jit(
      jax.value_and_grad(objective, (0, 1), has_aux=True), static_argnums=2
  )

  def assert_close(ours, theirs):
    bound = 1e-4 * np.abs(theirs).max()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound)

  for implementation in ("reference", "chunked"):
    (_, out), (of_params, of_qkv) = run(params, qkv, implementation)
    assert_close(out.transpose(0, 2, 1, 3), golden["context"])
    assert_close(of_params["table"], golden["grad.pos_emb"][0])
    for ours, name in zip(of_qkv, ("dq", "dk", "dv")):
      assert_close(ours.transpose(0, 2, 1, 3), golden[name])

  z = qkv[0] @ params["table"]
  mod = encoding.apply({"params": params}, method="score_mod")
  scores = np.einsum("bhtd,bhsd->bhts", golden["q"], golden["k"])
  scores = mod(
      scores * meta["head_dim"] ** -0.5, positions, positions, q_features=z
  )
  np.testing.assert_allclose(
      np.tril(scores), golden["biased_scores"], rtol=0, atol=2e-5
  )


def expected_attention(params, inputs, visible):
  _, q, k, v = (np.float64(x) for x in inputs)
  k, v = (np.repeat(x, 2, axis=2) for x in (k, v))
  scores = np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(token_cases.HEAD_DIM)
  gates = np.where(visible, 1 / (1 + np.exp(-scores)), 0)
  p = np.minimum(np.cumsum(gates[..., ::-1], -1)[..., ::-1], 3)
  z = np.einsum("btnh,hm->bntm", q, np.float64(params["table"]))
  for index in np.ndindex(p.shape):
    scores[index] += np.interp(p[index], np.arange(4), z[index[:3]])
  weights = np.exp(np.where(visible, scores, -np.inf))
  weights /= weights.sum(-1, keepdims=True)
  return np.einsum("bnts,bsnh->btnh", weights, v)


def test_only_visible_keys_count():
  params = token_cases.random_params(ENCODING)
  inputs = token_cases.tokens(1, 2, 9)
  distances = np.arange(9)[:, None] - np.arange(9)
  cases = {
      "causal": ({}, distances >= 0),
      "window": ({"window": 3}, (distances >= 0) & (distances < 3)),
      "both directions": ({"causal": False}, np.ones((9, 9), bool)),
  }

  @token_cases.jit
  def run(inputs):
    return {
        name: token_cases.attended(
            ENCODING, params, inputs, jnp.arange(9), **options
        )
        for name, (options, _) in cases.items()
    }

  for name, out in run(inputs).items():
    expected = expected_attention(params, inputs, cases[name][1])
    np.testing.assert_allclose(out, expected, atol=3e-6, err_msg=name)


def test_lookup_at_integers_and_at_the_end():
  z = jnp.array([[[1.0, 4.0, 2.0]]])
  p = jnp.array([[[0.0, 0.5, 1.0, 1.75, 2.0]]])
  value, pull = jax.vjp(lambda p: interpolated(z, p), p)
  (slope,) = pull(jnp.ones_like(value))
  np.testing.assert_allclose(value.ravel(), [1, 2.5, 4, 2.5, 2])
  np.testing.assert_allclose(slope.ravel(), [0, 3, 0, -2, 0])


def test_table_is_zero_at_init_and_no_bias_is_static():
  params = token_cases.initial_params(Cope(num_heads=4), 6, head_dim=3)
  assert params["table"].shape == (3, 64) and not params["table"].any()
  positions = jnp.arange(3)
  assert not ENCODING.apply({}, positions, positions, method="bias").any()


def test_options_are_checked():
  with pytest.raises(dape_jax.ConfigError, match="max_position=0"):
    Cope(num_heads=1, max_position=0)
