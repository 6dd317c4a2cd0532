"""What a trained model's encodings add to the scores of some queries.

Nothing here holds a matrix of all queries and keys: the text before the queries
is read in chunks through the key/value cache, and layers are looked at one by one.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from dape_jax.attention import Cache, last_slot, num_visible_keys
from dape_jax.attention.mask import column, row, visible_mask
from dape_jax.config import ModelConfig
from dape_jax.encodings import PositionalEncoding
from dape_jax.models import Transformer
from dape_jax.models.layers import is_shared, make_encoding

# Submodules of a block whose outputs the encoding is made of.
_CAPTURED = ("attention_norm", "query", "key")


@dataclasses.dataclass(frozen=True)
class Rows:
  """Scores of one layer, and what its encoding adds to them.

  Attributes:
    layer: index from 0.
    q_positions, kv_positions: int32 [t] and [s], of queries and keys.
    visible: [t, s] bool, the keys that each query attends to; numbers of others
      mean nothing.
    scores: S [N, t, s] float32, scaled products of rotated queries and keys.
    static: B [N, t, s], what the encoding adds whatever the scores are (and of
      most encodings, whatever the tokens are); 0 where there is none.
    total: A - S [N, t, s], A the scores that the softmax gets.
  """

  layer: int
  q_positions: np.ndarray
  kv_positions: np.ndarray
  visible: np.ndarray
  scores: np.ndarray
  static: np.ndarray
  total: np.ndarray

  @property
  def adaptive(self) -> np.ndarray:
    """Returns A - S - B [N, t, s], DAPE's f([S; B]).

    With DAPE's form "concat", which does not add B, f is `total`.
    """
    return self.total - self.static


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


def rows_of_layers(
    config: ModelConfig,
    params: Any,
    tokens: np.ndarray,
    layers: Iterable[int],
    *,
    num_queries: int,
    chunk: int,
    on_tokens: Callable[[int], Any] = lambda tokens: None,
) -> Iterator[Rows]:
  """Yields the rows of a text's last tokens, layer by layer.

  Beside the parameters, memory holds the cache and a few rows of all heads.

  Args:
    config: of the model.
    params: its parameters.
    tokens: [s] int, one document from its start.
    layers: indices from 0.
    num_queries: t, how many of the last tokens are queries.
    chunk: tokens before the queries that are read at a time.
    on_tokens: called with the number of tokens that were just read.
  """
  reading = read(config, params, tokens, num_queries, chunk, on_tokens)
  for layer in layers:
    yield rows_of_layer(config, params, reading, layer)


def read(
    config: ModelConfig,
    params: Any,
    tokens: np.ndarray,
    num_queries: int,
    chunk: int,
    on_tokens: Callable[[int], Any] = lambda tokens: None,
) -> Reading:
  """Returns what the layers made of a text; see `rows_of_layers`."""
  model = Transformer(dataclasses.replace(config, remat="none"))

  def step(params, cache, tokens_BxT):
    _, cache = model.apply({"params": params}, tokens_BxT, cache=cache)
    return cache

  def last_step(params, cache, tokens_BxT):
    (_, cache), captured = model.apply(
        {"params": params},
        tokens_BxT,
        cache=cache,
        mutable=["intermediates"],
        capture_intermediates=lambda module, method: (
            module.name in _CAPTURED and method == "__call__"
        ),
    )
    return Reading(cache, captured["intermediates"])

  # XLA leaves the logits out, since they are not returned.
  step, last_step = (jax.jit(f, donate_argnums=1) for f in (step, last_step))
  tokens_BxT = np.asarray(tokens, np.int32)[None]
  num_before = len(tokens) - num_queries
  # The odd chunk first: the others are of one size, for which XLA compiles once.
  starts = [*range(num_before % chunk, num_before + 1, chunk)]
  cache = model.empty_cache(1, len(tokens))
  for start, end in itertools.pairwise([0, *starts]):
    if start < end:
      cache = step(params, cache, tokens_BxT[:, start:end])
      jax.block_until_ready(cache.filled)
      on_tokens(end - start)
  reading = last_step(params, cache, tokens_BxT[:, num_before:])
  on_tokens(num_queries)
  return reading


def of_layer(config: ModelConfig, stacked: Any, layer: int) -> Any:
  """Returns one layer's part of what the model keeps under "layers"."""
  period = len(config.layer_kinds)
  if period > 1:
    stacked = stacked[f"blocks_{layer % period}"]
  return jax.tree.map(lambda x: x[layer // period], stacked)


def encoding_of_layer(
    config: ModelConfig, params: Any, layer: int
) -> PositionalEncoding:
  """Returns a layer's encoding, bound to its (or the shared) parameters."""
  if is_shared(config):
    own = params.get("encoding", {})
  else:
    own = of_layer(config, params["layers"], layer)["attention"]
    own = own.get("encoding", {})
  name, _ = config.layer_kinds[layer % len(config.layer_kinds)]
  return make_encoding(config, name, parent=None).bind({"params": own})


def rows_of_layer(
    config: ModelConfig, params: Any, reading: Reading, layer: int
) -> Rows:
  """Returns the rows of the queries that `read` has captured."""
  encoding = encoding_of_layer(config, params, layer)
  _, window = config.layer_kinds[layer % len(config.layer_kinds)]
  window = window or None
  cache = reading.cache
  outputs = of_layer(config, reading.outputs["layers"], layer)
  (x_BxTxD,) = outputs["attention_norm"]["__call__"]
  query, key = (
      outputs["attention"][name]["__call__"][0] for name in ("query", "key")
  )
  num_queries = query.shape[1]

  kv_features = previous = None
  if encoding.key_features:
    kv_features = cache.features[layer][..., : encoding.key_features]
    previous = last_slot(kv_features, cache.filled, num_queries)
  q_positions = cache.positions[:, -num_queries:]
  q_features, _ = encoding.features(x_BxTxD, query, key, previous=previous)
  num_visible = num_visible_keys(
      q_positions, segment_ids=None, causal=True, window=window
  )
  query, _ = encoding.rotate(
      encoding.scale_query(query, num_visible), key, q_positions, q_positions
  )

  # From here on without the batch of one.
  q_positions, kv_positions = q_positions[0], cache.positions[0]
  q_features, kv_features = jax.tree.map(
      lambda x: x[0], (q_features, kv_features)
  )
  visible_TxS = visible_mask(
      column(q_positions),
      row(kv_positions),
      None,
      None,
      causal=True,
      window=window,
  )
  scores_NxTxS = _scores(query[0], cache.keys[layer, 0])
  score_mod, total = encoding.score_mod(), jnp.zeros_like(scores_NxTxS)
  if score_mod is not None:
    modified = score_mod(
        scores_NxTxS,
        q_positions,
        kv_positions,
        visible=visible_TxS,
        q_features=q_features,
        kv_features=kv_features,
    )
    total = modified - scores_NxTxS
  static = encoding.bias(q_positions, kv_positions, q_features, kv_features)
  arrays = (q_positions, kv_positions, visible_TxS, scores_NxTxS, static, total)
  return Rows(layer, *map(np.asarray, arrays))


def _scores(query_TxNxH: jax.Array, key_SxKxH: jax.Array) -> jax.Array:
  """Returns q k^T / sqrt(H), [N, T, S] float32, as attention computes it."""
  num_queries, num_heads, head_dim = query_TxNxH.shape
  num_keys, num_kv_heads, _ = key_SxKxH.shape
  scores_KxGxTxS = jnp.einsum(
      "tkgh,skh->kgts",
      query_TxNxH.reshape(num_queries, num_kv_heads, -1, head_dim),
      key_SxKxH,
      precision="highest",
      preferred_element_type=jnp.float32,
  )
  return head_dim**-0.5 * scores_KxGxTxS.reshape(
      num_heads, num_queries, num_keys
  )
