"""The scores of some queries, and what a trained model's encodings add to them."""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dape_jax.attention import (
    encoded_tokens,
    last_slot,
    num_visible_keys,
    slots_of_layer,
)
from dape_jax.attention.mask import column, row, visible_mask
from dape_jax.config import ModelConfig
from dape_jax.encodings import AdditiveBias, PositionalEncoding
from dape_jax.models import Transformer
from dape_jax.models.layer_encodings import (
    check_positions,
    is_shared,
    make_encoding,
)
from dape_jax.plots.prefill import Prefill, of_layer, prefill


@dataclasses.dataclass(frozen=True)
class Rows:
  """Scores of some queries in one layer, and what its encoding adds to them.

  Attributes:
    layer: index from 0.
    q_positions, kv_positions: int32 [t] and [s], of queries and keys.
    visible: [t, s] bool, the keys that each query attends to; values at other
      keys are undefined.
    scores: S [N, t, s] float32, scaled products of rotated queries and keys.
    static: B [N, t, s], the part of the bias that does not depend on the scores
      (nor, for most encodings, on the tokens); 0 if there is none.
    total: A - S [N, t, s], where A are the inputs of the softmax.
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

    DAPE's form "concat" does not add B; its f is `total`.
    """
    return self.total - self.static


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

  Besides the parameters, memory holds the cache and one layer's rows.

  Args:
    config, params, tokens, num_queries, chunk, on_tokens: see `prefill.prefill`.
    layers: indices from 0.
  """
  check_positions(config, len(tokens), f"{len(tokens)} tokens")
  config = Transformer(config).at_length(len(tokens)).config
  filled = prefill(config, params, tokens, num_queries, chunk, on_tokens)
  for layer in layers:
    yield rows_of_layer(config, params, filled, layer)


def encoding_of_layer(
    config: ModelConfig, params: Any, layer: int
) -> PositionalEncoding:
  """Returns a layer's encoding, bound to its (or the shared) parameters."""
  if is_shared(config):
    own = params.get("encoding", {})
  else:
    own = of_layer(config, params["layers"], layer, "attention", "encoding")
  name, _ = config.layer_kinds[layer % len(config.layer_kinds)]
  return make_encoding(config, name, parent=None).bind({"params": own})


def rows_of_layer(
    config: ModelConfig, params: Any, filled: Prefill, layer: int
) -> Rows:
  """Returns one layer's rows of the queries that `read` captured."""
  encoding, variables = encoding_of_layer(config, params, layer).unbind()
  _, window = config.layer_kinds[layer % len(config.layer_kinds)]
  outputs = of_layer(config, filled.outputs["layers"], layer)
  (x_BxTxD,) = outputs["attention_norm"]["__call__"]
  query, key = (
      outputs["attention"][name]["__call__"][0] for name in ("query", "key")
  )
  cache = filled.cache
  keys = slots_of_layer(cache.keys, layer)
  keys_BxSxKxH = keys.reshape(*keys.shape[:2], *key.shape[2:])
  features = cache.features
  if features is not None:
    features = slots_of_layer(features, layer)[..., : encoding.key_features]
  arrays = _rows(
      encoding,
      window or None,
      variables,
      x_BxTxD,
      query,
      key,
      keys_BxSxKxH,
      features if encoding.key_features else None,
      cache.positions,
  )
  return Rows(layer, *map(np.asarray, arrays))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _rows(
    encoding,
    window,
    variables,
    x_BxTxD,
    query_BxTxNxH,
    key_BxTxKxH,
    keys_BxSxKxH,
    features_BxSxF,
    positions_BxS,
):
  """Returns the arrays of `Rows`, in field order; B is 1."""
  encoding = encoding.bind(variables)
  num_keys, num_queries = positions_BxS.shape[1], x_BxTxD.shape[1]
  previous = None
  if features_BxSxF is not None:
    previous = last_slot(features_BxSxF, num_keys, num_queries)
  q_positions = positions_BxS[:, -num_queries:]
  num_visible = num_visible_keys(
      q_positions=q_positions,
      kv_positions=positions_BxS,
      q_segment_ids=None,
      kv_segment_ids=None,
      causal=True,
      window=window,
  )
  query_BxTxNxH, _, q_features, _ = encoded_tokens(
      encoding,
      x_BxTxD,
      query_BxTxNxH,
      key_BxTxKxH,
      q_positions,
      num_visible,
      previous=previous,
  )

  q_positions, kv_positions = q_positions[0], positions_BxS[0]
  q_features, kv_features = jax.tree.map(
      lambda x: x[0], (q_features, features_BxSxF)
  )
  visible_TxS = visible_mask(
      column(q_positions),
      row(kv_positions),
      None,
      None,
      causal=True,
      window=window,
  )
  # q k^T / sqrt(H), as attention computes it.
  num_kv_heads, head_dim = keys_BxSxKxH.shape[2:]
  grouped = (num_queries, num_kv_heads, -1, head_dim)
  scores_KxGxTxS = jnp.einsum(
      "tkgh,skh->kgts",
      query_BxTxNxH[0].reshape(grouped),
      keys_BxSxKxH[0],
      precision="highest",
      preferred_element_type=jnp.float32,
  )
  scores_NxTxS = head_dim**-0.5 * scores_KxGxTxS.reshape(
      -1, num_queries, num_keys
  )
  static = encoding.bias(q_positions, kv_positions, q_features, kv_features)
  score_mod, total = encoding.score_mod(), static
  # Otherwise A - S is B and the rounding error of A, which would look learned.
  if score_mod and not isinstance(score_mod.function, AdditiveBias):
    modified = score_mod(
        scores_NxTxS,
        q_positions,
        kv_positions,
        visible=visible_TxS,
        q_features=q_features,
        kv_features=kv_features,
    )
    total = modified - scores_NxTxS
  return q_positions, kv_positions, visible_TxS, scores_NxTxS, static, total


def write_rows(
    rows: Rows, path: os.PathLike, *, heads: Sequence[int], with_query: bool
) -> None:
  """Writes a CSV file with a line for each pair of a query and a visible key.

  Columns: layer, head, query (optional), key, distance, score (S), static (B),
  adaptive (A - S - B) and total (A - S).

  Args:
    rows: of one layer.
    path: of the file.
    heads: heads to write.
    with_query: whether to include the query's position.
  """
  query, key = np.nonzero(rows.visible)
  q_position, kv_position = rows.q_positions[query], rows.kv_positions[key]
  integers = {"query": q_position} if with_query else {}
  integers |= {"key": kv_position, "distance": q_position - kv_position}
  floats = {
      "score": rows.scores,
      "static": rows.static,
      "adaptive": rows.adaptive,
      "total": rows.total,
  }
  table = [
      [
          np.full(len(key), rows.layer),
          np.full(len(key), head),
          *integers.values(),
          *(values[head, query, key] for values in floats.values()),
      ]
      for head in heads
  ]
  np.savetxt(
      path,
      np.concatenate(table, axis=1).T,
      fmt=["%d"] * (2 + len(integers)) + ["%.9g"] * len(floats),
      delimiter=",",
      header=",".join(["layer", "head", *integers, *floats]),
      comments="",
  )
