"""Released tensor names; encodings/golden_test.py checks the numbers."""

import itertools
import logging

import numpy as np
import pytest

import dape_jax
from dape_jax.interop import neox


def kerple(heads=3):
  return {
      "bias_p": np.full((heads, 1, 1), 1.5, np.float32),
      "bias_a": np.full((heads, 1, 1), 0.5, np.float32),
  }


def network(heads=3, width=4, channels=6, window=()):
  return {
      "mlp2.0.weight": np.zeros((width, channels, *window)),
      "mlp2.0.bias": np.zeros(width),
      "mlp2.2.weight": np.zeros((heads, width, *window)),
      "mlp2.2.bias": np.zeros(heads),
  }


def fire(layers=1):
  tensors = {"c": np.float32(0.1), "init_L": 64.0, "L_multiplier": np.ones(())}
  sizes = [1, *[8] * layers, 3]
  for k, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
    tensors[f"mlp.{2 * k}.weight"] = np.zeros((fan_out, fan_in))
    tensors[f"mlp.{2 * k}.bias"] = np.zeros(fan_out)
  return tensors


def test_names_and_dtypes(caplog):
  with caplog.at_level(logging.INFO):
    params = neox.encoding_params("dape_kerple_log", kerple() | network())
  assert set(params["base"]) == {"r1", "r2"}
  np.testing.assert_array_equal(params["base"]["r1"], [1.5] * 3)
  assert params["hidden_kernel"].shape == (6, 4)
  assert params["output_kernel"].dtype == np.float32
  assert "Dropped mlp2.2.bias of dape_kerple_log" in caplog.text


@pytest.mark.parametrize("layers", [1, 2])
def test_options_come_from_the_tensors(layers):
  tensors = fire(layers) | network(window=(1, 5))
  options = neox.encoding_options("dape_v2_fire", tensors)
  assert options == {
      "threshold": 64.0,
      "fire_width": 8,
      "fire_layers": layers,
      "width": 4,
      "kernel_size": 5,
      "edge": "zero",
  }
  encoding = dape_jax.encodings.make("dape_v2_fire", num_heads=3, **options)
  params = neox.encoding_params("dape_v2_fire", tensors)
  encoding.apply({"params": params}, method="score_mod")


def test_slopes_saved_with_alibi_are_checked():
  tensors = network(channels=6) | {"slopes": np.array([1 / 16, 1 / 256, 0.25])}
  assert set(neox.encoding_params("dape_alibi", tensors)["base"]) == set()
  tensors["slopes"] = np.ones((3, 1, 1))
  with pytest.raises(dape_jax.ConfigError, match="slopes"):
    neox.encoding_params("dape_alibi", tensors)


@pytest.mark.parametrize(
    "name, tensors, message",
    [
        ("kerple_log", {"bias_p": np.ones((3, 1, 1))}, r"missing \['bias_a'\]"),
        ("alibi", kerple(), r"extra \['bias_a', 'bias_p'\]"),
        ("kerple_log", kerple() | network(), "extra .*mlp2.0.bias"),
        ("dape_nope", network(), r'"mlp2.0.weight" has shape \[4, 6\]'),
        (
            "dape_kerple_log",
            kerple(2) | network(),
            r'"mlp2.2.weight" has shape \[3, 4\], expected \[2, \?\]',
        ),
        ("fire", fire() | {"mlp.0.bias": np.ones(5)}, r"expected \[8\]"),
        ("fire", fire() | {"c": np.ones(2)}, r'"c" has shape \[2\]'),
        ("kerple", kerple(), "kerple_log"),
        ("kerple_log", {"bias_p": 1.0, "bias_a": 1.0}, r"shape \[\], expected"),
        (
            "dape_v2_nope",
            network(channels=3, window=(1, 4)),
            "kernel size must be odd",
        ),
    ],
)
def test_mismatched_tensors_are_named(name, tensors, message):
  with pytest.raises(dape_jax.ConfigError, match=message):
    neox.encoding_params(name, tensors)


@pytest.mark.parametrize("name", ["t5", "dape_fox", "dape_static_kerple_log"])
def test_unreleased_encoding_is_rejected(name):
  with pytest.raises(dape_jax.ConfigError, match="not in the released code"):
    neox.encoding_params(name, {})
