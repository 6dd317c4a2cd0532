"""Runs a model over a text in chunks, and captures activations of its last tokens.

It uses the key/value cache, as evaluation does, so memory grows with the length
and not with its square.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import numpy as np

from dape_jax.attention import Cache
from dape_jax.config import ModelConfig
from dape_jax.models import Transformer

# Submodules of a block whose outputs the encoding depends on.
_CAPTURED = ("attention_norm", "query", "key")


@flax.struct.dataclass
class Reading:
  """The state of a model after a text.

  Attributes:
    cache: of all tokens and layers.
    outputs: of the blocks' submodules for the last tokens, {"layers":
      {"attention_norm": {"__call__": ([num_layers, 1, t, D],)}, ...}}.
  """

  cache: Cache
  outputs: Any


def read(
    config: ModelConfig,
    params: Any,
    tokens: np.ndarray,
    num_queries: int,
    chunk: int,
    on_tokens: Callable[[int], Any] = lambda tokens: None,
) -> Reading:
  """Runs the model over a text, and captures its last tokens.

  Args:
    config: of the model.
    params: its parameters.
    tokens: [s] int, one document from its start.
    num_queries: t, the number of last tokens to capture.
    chunk: tokens per step of the prefill before them.
    on_tokens: called with the number of tokens just processed.
  """
  tokens_BxT = np.asarray(tokens, np.int32)[None]
  num_before = len(tokens) - num_queries
  # The odd chunk comes first; the others share a size, and a compilation.
  starts = [*range(num_before % chunk, num_before + 1, chunk)]
  cache = Transformer(config).empty_cache(1, len(tokens))
  for start, end in itertools.pairwise([0, *starts]):
    if start < end:
      cache = _step(config, params, cache, tokens_BxT[:, start:end])
      jax.block_until_ready(cache.filled)
      on_tokens(end - start)
  reading = _last_step(config, params, cache, tokens_BxT[:, num_before:])
  on_tokens(num_queries)
  return reading


# Neither returns the logits, so XLA does not compute them.
@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _step(config, params, cache, tokens_BxT):
  """Returns the cache extended by T tokens."""
  _, cache = Transformer(config).apply(
      {"params": params}, tokens_BxT, cache=cache
  )
  return cache


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _last_step(config, params, cache, tokens_BxT):
  """Returns the Reading of the last T tokens."""
  (_, cache), captured = Transformer(config).apply(
      {"params": params},
      tokens_BxT,
      cache=cache,
      mutable=["intermediates"],
      capture_intermediates=lambda module, method: (
          module.name in _CAPTURED and method == "__call__"
      ),
  )
  return Reading(cache, captured["intermediates"])


def of_layer(config: ModelConfig, stacked: Any, layer: int, *path: str) -> Any:
  """Returns one layer's part of the subtree at `path`, {} if it is missing.

  Args:
    config: of the model.
    stacked: what the model keeps under "layers".
    layer: index from 0.
    *path: keys within a layer.
  """
  period = len(config.layer_kinds)
  if period > 1:
    stacked = stacked[f"blocks_{layer % period}"]
  for name in path:
    stacked = stacked.get(name, {})
  return jax.tree.map(lambda x: x[layer // period], stacked)
