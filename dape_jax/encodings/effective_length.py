"""Effective length of a static bias (KERPLE, arXiv 2205.09921, A.5)."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dape_jax.encodings.base import PositionalEncoding

LEVEL = -2.0


def bias_of_distances(
    encoding: PositionalEncoding,
    variables: Mapping[str, Any],
    query_position: int,
) -> Callable[[np.ndarray], jax.Array]:
  """Returns a function from int distances [n] to biases [N, n].

  The biases are those of one query for the keys before it. For most encodings
  they are the same for every query; FIRE's depend on the query's position.

  Args:
    encoding: encoding with a static bias.
    variables: variables of the encoding, {"params": ...}.
    query_position: position of the query, and so the largest distance.
  """

  @jax.jit
  def bias(kv_positions):
    q_positions = jnp.array([query_position], jnp.int32)
    return encoding.apply(variables, q_positions, kv_positions, method="bias")

  return lambda distances: bias(
      np.asarray(query_position - distances, np.int32)
  )[:, 0]


def effective_lengths(
    bias: Callable[[np.ndarray], jax.Array],
    max_distance: int,
    *,
    level: float = LEVEL,
    chunk: int = 65536,
) -> np.ndarray:
  """Returns the smallest distance where each head's bias is below `level`, [N].

  Heads hardly attend to keys beyond it. If the bias stays above the level
  up to and including max_distance, the result is max_distance + 1.

  Args:
    bias: function from int distances [n] to biases [N, n], see
      `bias_of_distances`.
    max_distance: largest distance to search.
    level: threshold of the bias.
    chunk: distances per call; memory is N times this number.
  """
  lengths = None
  chunk = min(chunk, max_distance + 1)
  for start in range(0, max_distance + 1, chunk):
    # A fixed number of distances, so that `bias` is compiled once.
    distances = np.minimum(np.arange(start, start + chunk), max_distance)
    below = np.asarray(bias(distances)) < level
    if lengths is None:
      lengths = np.full(len(below), max_distance + 1)
    found = np.where(
        below.any(axis=1), distances[below.argmax(axis=1)], max_distance + 1
    )
    lengths = np.minimum(lengths, found)
    if (lengths <= max_distance).all():
      break
  return lengths
