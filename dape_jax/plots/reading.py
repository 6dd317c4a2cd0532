"""Reading a text in chunks, and what the layers make of its last tokens.

Through the key/value cache, as in evaluation, so that memory grows with the
length and not with its square.
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

# Submodules of a block whose outputs the encoding is made of.
_CAPTURED = ("attention_norm", "query", "key")


@flax.struct.dataclass
class Reading:
  """A text that was read, and the projections of its last tokens.

  Attributes:
    cache: of all tokens and layers.
    outputs: of the blocks' submodules, for the last tokens: {"layers":
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
  """Returns what the layers made of a text.

  Args:
    config: of the model.
    params: its parameters.
    tokens: [s] int, one document from its start.
    num_queries: t, how many of the last tokens are captured.
    chunk: tokens before them that are read at a time.
    on_tokens: called with the number of tokens that were just read.
  """
  tokens_BxT = np.asarray(tokens, np.int32)[None]
  num_before = len(tokens) - num_queries
  # The odd chunk first: the others are of one size, for which XLA compiles once.
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


# XLA leaves the logits out of either, since they are not returned.
@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _step(config, params, cache, tokens_BxT):
  """Returns the cache with T more tokens."""
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
  """Returns one layer's part of what the model keeps under "layers".

  Of that, what is at `path`; nothing ({}) where there is none.
  """
  period = len(config.layer_kinds)
  if period > 1:
    stacked = stacked[f"blocks_{layer % period}"]
  for name in path:
    stacked = stacked.get(name, {})
  return jax.tree.map(lambda x: x[layer // period], stacked)
