"""Every implementation of attention matches the float64 reference."""

import jax
import jax.numpy as jnp
import pytest
from attention_cases import CASES, assert_close, outputs_and_gradients

from dape_jax.attention import target, tiling

# One encoding for each way to modify scores.
KINDS = ["nope", "alibi", "dape_kerple_log", "dape_fire", "dape_v2_kerple_log"]


@pytest.fixture
def small_tiles(monkeypatch):
  monkeypatch.setattr(tiling, "CPU_BLOCKS", (16, 32))
  monkeypatch.setattr(tiling, "CPU_BLOCKS_OF_FOUR", (8, 16))


@pytest.mark.parametrize(
    "name, case",
    [
        (name, case)
        for name in KINDS
        for case in ("packed_window", "cached", "both_directions", "batch_of_8")
    ],
)
def test_chunked_with_small_tiles(name, case, small_tiles):
  with jax.enable_x64(True):
    ours, expected = (
        outputs_and_gradients(implementation, name, CASES[case], jnp.float64)
        for implementation in ("chunked", "reference")
    )
  assert_close(ours, expected, 1e-11)


@pytest.mark.parametrize(
    "name",
    [
        "alibi",
        "dape_kerple_log",
        "dape_v2_kerple_log",
        pytest.param("nope", marks=pytest.mark.soak),
        pytest.param("dape_fire", marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize(
    "case", ["one_token", "window", *(n for n in CASES if "length" in n)]
)
def test_chunked_with_default_tiles(name, case):
  with jax.enable_x64(True):
    ours, expected = (
        outputs_and_gradients(implementation, name, CASES[case], jnp.float64)
        for implementation in ("chunked", "reference")
    )
  assert_close(ours, expected, 1e-11)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_chunked_in_lower_precision(name, dtype, small_tiles):
  """Against float64 with the same rounded inputs."""
  case = CASES["packed"]
  ours = outputs_and_gradients("chunked", name, case, dtype)
  with jax.enable_x64(True):
    expected = outputs_and_gradients("reference", name, case, jnp.float64)
  assert ours["out"].dtype == dtype
  # Sign flips of LeakyReLU near 0 alone cause errors of up to 4e-4.
  tolerance = 1e-3 if dtype == jnp.float32 else 0.06
  assert_close(ours, expected, tolerance)


def test_operands_are_rounded_on_a_tpu_only(monkeypatch):
  assert target.operand_dtype(jnp.bfloat16) is None
  monkeypatch.setattr(target, "target_platform", lambda: "tpu")
  assert target.operand_dtype(jnp.bfloat16) == jnp.bfloat16
  assert target.operand_dtype(jnp.float32) is None
