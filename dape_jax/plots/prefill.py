"""Runs a model over a text in chunks, and captures activations of its last tokens.

It uses the key/value cache, as evaluation does, so memory grows with the length
and not with its square.
"""

import argparse
import functools
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import numpy as np

from dape_jax.attention import Cache
from dape_jax.checkpoint.runs import Run, load_corpus_of, load_tokenizer
from dape_jax.config import ModelConfig
from dape_jax.errors import ConfigError
from dape_jax.models import Transformer

# Submodules of a block whose outputs the encoding depends on.
_CAPTURED = ("attention_norm", "query", "key")


@flax.struct.dataclass
class Prefill:
  """The state of a model after a text.

  Attributes:
    cache: of all tokens and layers.
    outputs: of the blocks' submodules for the last tokens, {"layers":
      {"attention_norm": {"__call__": ([num_layers, 1, t, D],)}, ...}}.
  """

  cache: Cache
  outputs: Any


def prefill(
    config: ModelConfig,
    params: Any,
    tokens: np.ndarray,
    num_queries: int,
    chunk: int,
    on_tokens: Callable[[int], Any] = lambda tokens: None,
) -> Prefill:
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
  for start, end in itertools.pairwise([0, *starts, len(tokens)]):
    if start < end:
      chunk_BxT, is_last = tokens_BxT[:, start:end], start == num_before
      filled = _step(config, is_last, params, cache, chunk_BxT)
      cache = jax.block_until_ready(filled.cache)
      on_tokens(end - start)
  return filled


# Does not return the logits, so XLA does not compute them.
@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _step(config, capture: bool, params, cache, tokens_BxT) -> Prefill:
  """Returns the cache extended by T tokens, and their outputs if captured."""
  (_, cache), captured = Transformer(config).apply(
      {"params": params},
      tokens_BxT,
      cache=cache,
      mutable=["intermediates"],
      capture_intermediates=lambda module, method: (
          module.name in _CAPTURED and method == "__call__"
      ),
  )
  return Prefill(cache, captured["intermediates"] if capture else None)


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


def read_text(
    run: Run, flags: argparse.Namespace, wanted: int
) -> tuple[np.ndarray, str]:
  """Returns the first tokens of the requested text, and where it comes from.

  Args:
    run: whose tokenizer and corpus are used.
    flags: string, text, split and data_dir. With neither string nor text, the text
      is the median of the split's documents that are long enough, or the longest.
    wanted: number of tokens; fewer are returned if the text is shorter.

  Returns:
    Tokens [s] int32 of one document from its start, and a description.

  Raises:
    ConfigError: the file cannot be read, or the corpus does not exist.
  """
  string = getattr(flags, "string", None)
  if string is not None:
    tokens = load_tokenizer(run).encode(string.encode())
    source = "--string"
  elif flags.text is not None:
    try:
      content = pathlib.Path(flags.text).read_bytes()
    except OSError as error:
      raise ConfigError(f"--text={flags.text}: {error.strerror}.") from error
    tokens = load_tokenizer(run).encode(content)
    source = pathlib.Path(flags.text).name
  else:
    documents = load_corpus_of([run], flags.data_dir).split(flags.split)
    lengths = np.diff(documents.starts) - 1  # Without the end token.
    long_enough = np.flatnonzero(lengths >= wanted)
    if long_enough.size:
      number = int(long_enough[len(long_enough) // 2])
    else:
      number = int(lengths.argmax())
    start = int(documents.starts[number])
    tokens = documents.tokens[start : start + lengths[number]]
    source = f"{flags.split} split, {documents.name(number)}"
  return np.asarray(tokens[:wanted], np.int32), source
