"""Rows of scores match the model's own attention, in chunks or at once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dape_jax.config import ModelConfig
from dape_jax.models import Transformer
from dape_jax.plots import prefill, rows

LENGTH = 11
CASES = {
    "dape": dict(encoding="dape_kerple_log", remat="dots"),
    "in turn": dict(encoding="rope,fox", windows=(4, 0), num_kv_heads=1),
    "shared": dict(
        encoding="cope",
        encoding_options={"ssmax": True, "soft_cap": 3.0},
        share_encoding=True,
    ),
}


def model_config(name):
  values = dict(
      vocab_size=17, num_layers=2, width=8, num_heads=2, dtype="float32"
  )
  return ModelConfig(**values | CASES[name])


def random_params(config):
  model = Transformer(config)
  shapes = jax.eval_shape(
      model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32)
  )["params"]
  rng = np.random.default_rng(0)
  return jax.tree.map(
      lambda x: jnp.float32(0.5 * rng.normal(size=x.shape)), shapes
  )


@functools.cache
def case(name):
  """Returns config, parameters, tokens, Prefill, and the rows of all queries."""
  config = model_config(name)
  params = random_params(config)
  tokens = np.random.default_rng(1).integers(0, config.vocab_size, LENGTH)
  with pytest.MonkeyPatch.context() as patch:
    # The output of attention too, to compare with.
    captured = (*prefill._CAPTURED, "output")
    patch.setattr(prefill, "_CAPTURED", captured)
    filled = prefill.prefill(config, params, tokens, LENGTH, chunk=LENGTH)
  found = [rows.rows_of_layer(config, params, filled, n) for n in (0, 1)]
  return config, params, tokens, filled, found


@pytest.mark.parametrize("name", CASES)
def test_rows_reproduce_the_attention_output(name):
  """Attention computed from the rows matches the model's."""
  config, params, _, filled, all_rows = case(name)
  for layer, of_layer in enumerate(all_rows):
    visible = of_layer.visible
    _, window = config.layer_kinds[layer % len(config.layer_kinds)]
    expected = np.tri(LENGTH, dtype=bool)
    if window:
      expected &= ~np.tri(LENGTH, k=-window, dtype=bool)
    np.testing.assert_array_equal(visible, expected)

    modified = np.where(visible, of_layer.scores + of_layer.total, -np.inf)
    weights = np.exp(modified - modified.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    values = np.asarray(filled.cache.values[layer, 0])
    values = values.reshape(len(values), -1, config.width // 2)
    values = np.repeat(values, 2 // values.shape[1], axis=1)
    own = prefill.of_layer(config, params["layers"], layer, "attention")
    out = np.einsum("nts,snh,nhd->td", weights, values, own["output"]["kernel"])
    (found,) = prefill.of_layer(
        config, filled.outputs["layers"], layer, "attention", "output"
    )["__call__"]
    out += np.asarray(own["output"]["bias"])
    np.testing.assert_allclose(out, found[0], rtol=2e-4, atol=2e-4)


def test_cached_query_matches_its_row_of_all_queries():
  config, params, tokens, _, whole = case("in turn")
  counts = []
  by_layer = rows.rows_of_layers(
      config,
      params,
      tokens,
      (1, 0),
      num_queries=1,
      chunk=5,
      on_tokens=counts.append,
  )
  by_layer = list(by_layer)
  assert counts == [5, 5, 1]
  assert [found.layer for found in by_layer] == [1, 0]
  for found in by_layer:
    expected = whole[found.layer]
    np.testing.assert_array_equal(found.q_positions, [LENGTH - 1])
    np.testing.assert_array_equal(found.kv_positions, np.arange(LENGTH))
    seen = found.visible[0]
    np.testing.assert_array_equal(seen, expected.visible[-1])
    for field in ("scores", "static", "adaptive", "total"):
      np.testing.assert_allclose(
          getattr(found, field)[:, 0, seen],
          getattr(expected, field)[:, -1, seen],
          rtol=1e-4,
          atol=1e-4,
          err_msg=f"layer {found.layer}, {field}",
      )


def test_parts_match_a_numpy_implementation():
  """The first layer of a decoder with DAPE over KERPLE in plain NumPy."""
  _, params, tokens, _, (found, _) = case("dape")
  params = jax.tree.map(np.float64, params)
  layer = jax.tree.map(lambda x: x[0], params["layers"])
  x = params["embedding"][tokens]
  x = x - x.mean(-1, keepdims=True)
  x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
  x = x * layer["attention_norm"]["scale"] + layer["attention_norm"]["bias"]

  def project(p):
    return np.einsum("td,dnh->nth", x, p["kernel"]) + p["bias"][:, None]

  q, k = (project(layer["attention"][name]) for name in ("query", "key"))
  scores = q @ k.swapaxes(1, 2) / 2
  encoding = layer["attention"]["encoding"]
  r1, r2 = (
      np.maximum(encoding["base"][name], 0.01)[:, None, None]
      for name in ("r1", "r2")
  )
  i = np.arange(LENGTH)
  static = -r1 * np.log(1 + r2 * np.abs(i[:, None] - i))
  hidden = np.einsum(
      "cts,cm->mts",
      np.concatenate([scores, static]),
      encoding["hidden_kernel"],
  )
  hidden = hidden + encoding["hidden_bias"][:, None, None]
  hidden = np.maximum(hidden, 0.01 * hidden)
  adaptive = np.einsum("mts,mn->nts", hidden, encoding["output_kernel"])
  for name, expected in (
      ("scores", scores),
      ("static", static),
      ("adaptive", adaptive),
      ("total", static + adaptive),
  ):
    np.testing.assert_allclose(
        getattr(found, name)[:, found.visible],
        expected[:, found.visible],
        atol=1e-4,
        err_msg=name,
    )


def test_missing_parts_are_zero():
  *_, (rope, fox) = case("in turn")
  assert not rope.static.any() and not rope.total.any()
  assert fox.static.any() and not fox.adaptive.any()
  *_, (cope, _) = case("shared")
  assert not cope.static.any() and cope.adaptive.any()
