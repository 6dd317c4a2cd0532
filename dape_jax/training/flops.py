"""How many floating point operations a model takes."""

import math
from typing import Any

import jax

from dape_jax.config import ModelConfig


def _score_network_multiplications(params: Any) -> int:
  """Returns multiplications for a pair of tokens, over all layers."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(params)
  return sum(
      math.prod(leaf.shape)
      for path, leaf in leaves
      if path[-1].key in ("hidden_kernel", "output_kernel")
  )


def flops_per_token(config: ModelConfig, params: Any, length: int) -> float:
  """Returns the FLOPs of a training step for each token of a row.

  3 times those of the forward pass, in which each multiplication of a matrix
  product counts with its addition: of the projections and the head; of scores and
  weighted values, for the keys that a token sees (half a row on average if
  causal, at most a window); and of DAPE's networks for each of these keys.
  Embedding, norms, biases, softmax and what is recomputed are not counted.

  Args:
    config: of the model.
    params: its parameters, or their shapes.
    length: tokens of a row T.
  """
  leaves, _ = jax.tree_util.tree_flatten_with_path(params)
  names = lambda path: [entry.key for entry in path]
  matrices = sum(
      math.prod(leaf.shape)
      for path, leaf in leaves
      if names(path)[-1] == "kernel" and "encoding" not in names(path)
  )
  seen = [
      min(window or length, (length + 1) / 2 if config.causal else length)
      for _, window in config.layer_kinds
  ]
  mean_seen = sum(seen) / len(seen)
  copies = config.num_layers if config.share_encoding else 1
  pairs = 2 * config.width * config.num_layers
  pairs += copies * _score_network_multiplications(params)
  return 3 * 2 * (matrices + mean_seen * pairs)
