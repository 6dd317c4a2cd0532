"""How many floating point operations a model takes."""

import math
from typing import Any

import jax

from dape_jax.config import ModelConfig


def _names(path) -> list[str]:
  return [entry.key for entry in path]


def _score_network_multiplications(params: Any, block: str) -> int:
  """Returns multiplications for a pair of tokens, over all layers of a kind.

  Args:
    params: of the model.
    block: name of their block; "" is all layers.
  """
  leaves, _ = jax.tree_util.tree_flatten_with_path(params)
  return sum(
      math.prod(leaf.shape)
      for path, leaf in leaves
      if _names(path)[-1] in ("hidden_kernel", "output_kernel")
      and (not block or block in _names(path))
  )


def _mean_keys(window: int, length: int, causal: bool) -> float:
  """Returns the keys that a token sees, mean over a row; window 0 is none."""
  window = min(window or length, length)
  before = window - window * (window - 1) / (2 * length)
  return before if causal else 2 * before - 1


def flops_per_token(config: ModelConfig, params: Any, length: int) -> float:
  """Returns the FLOPs of a training step for each token of a row.

  3 times those of the forward pass, in which each multiplication of a matrix
  product counts with its addition: of the projections and the head; of scores and
  weighted values, for the keys that a token sees (half a row on average if causal;
  a window, fewer at the ends); and of DAPE's networks for each of these keys.
  Embedding, norms, biases, softmax and what is recomputed are not counted.

  Args:
    config: of the model.
    params: its parameters, or their shapes.
    length: tokens of a row T.
  """
  leaves, _ = jax.tree_util.tree_flatten_with_path(params)
  matrices = sum(
      math.prod(leaf.shape)
      for path, leaf in leaves
      if _names(path)[-1] == "kernel" and "encoding" not in _names(path)
  )
  kinds = config.layer_kinds
  num_layers = config.num_layers // len(kinds)
  pairs = 0.0
  for i, (_, window) in enumerate(kinds):
    is_one = len(kinds) == 1 or config.share_encoding
    network = _score_network_multiplications(
        params, "" if is_one else f"blocks_{i}"
    )
    network *= num_layers if config.share_encoding else 1
    seen = _mean_keys(window, length, config.causal)
    pairs += seen * (2 * config.width * num_layers + network)
  return 3 * 2 * (matrices + pairs)
