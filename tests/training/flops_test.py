"""FLOPs of a model against counts by hand; the table of chips."""

import jax
import jax.numpy as jnp
import pytest

from dape_jax.config import ModelConfig
from dape_jax.models import Transformer
from dape_jax.training.flops import chip_of, flops_per_token


def _flops(length, **changes):
  settings = dict(
      vocab_size=10, num_layers=3, width=8, num_heads=2, encoding="kerple_log"
  )
  config = ModelConfig(**settings | changes)
  model = Transformer(config)
  tokens = jnp.zeros((1, 1), jnp.int32)
  params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
  return flops_per_token(config, params, length)


# Query, key, value, output and the two matrices of the MLP; the head.
_MATRICES = 3 * (4 * 8 * 8 + 2 * 8 * 32) + 8 * 10


@pytest.mark.parametrize(
    "changes, seen, per_pair",
    [
        ({}, 5, 3 * 2 * 8),
        ({"causal": False}, 9, 3 * 2 * 8),
        ({"windows": (4,)}, (1 + 2 + 3 + 6 * 4) / 9, 3 * 2 * 8),
        ({"windows": (4,), "causal": False}, (2 * 30 - 9) / 9, 3 * 2 * 8),
        ({"windows": (4, 0, 0)}, (30 / 9 + 5 + 5) / 3, 3 * 2 * 8),
        # From two scores and two biases to 32 hidden units to two scores.
        ({"encoding": "dape_kerple_log"}, 5, 3 * (2 * 8 + 6 * 32)),
        (
            {"encoding": "dape_kerple_log", "share_encoding": True},
            5,
            3 * (2 * 8 + 6 * 32),
        ),
        ({"encoding": "dape_v2_kerple_log"}, 5, 3 * (2 * 8 + 3 * 6 * 32)),
    ],
)
def test_flops_by_hand(changes, seen, per_pair):
  expected = 6 * (_MATRICES + seen * per_pair)
  assert _flops(9, **changes) == pytest.approx(expected, rel=1e-12)


def test_score_networks_count_the_keys_of_their_own_layers():
  encoding = "nope,dape_kerple_log,nope"
  pairs = (5 + 30 / 9 + 5) * 2 * 8 + 30 / 9 * 6 * 32
  found = _flops(9, encoding=encoding, windows=(0, 4, 0))
  assert found == pytest.approx(6 * (_MATRICES + pairs), rel=1e-12)


def test_grouped_queries_have_smaller_matrices():
  fewer = 3 * 2 * 8 * 4
  assert _flops(9, num_kv_heads=1) == _flops(9) - 6 * fewer


def test_longest_matching_name_selects_the_chip():
  assert chip_of("TPU v5 lite").flops == 197e12
  assert chip_of("TPU v5p").flops == chip_of("TPU v5").flops == 459e12
  assert chip_of("NVIDIA H100 80GB HBM3").flops == 989e12
  assert chip_of("cpu") is None
