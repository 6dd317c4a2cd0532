"""Negative log-likelihood of segments under a language model.

Segments are read in chunks through the key/value cache, so that memory grows
with the length and not with its square; the cache's capacity doubles as it
fills, so that early chunks carry few slots from layer to layer.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dape_jax.attention import grow_cache
from dape_jax.evaluation.protocols import Segment


def make_segment_nats(model: Any) -> Callable[..., list[np.ndarray]]:
  """Returns the function that reads segments, compiled once for `model`.

  It compiles one step for each (batch size, chunk size, cache capacity).

  Args:
    model: decoder such as `models.Transformer`: `model.apply({"params":
      params}, tokens_BxT, segment_ids=, cache=)` returns float32 logits
      [B, T, V] and the cache; `model.empty_cache(batch_size, capacity)`.

  Returns:
    `segment_nats(params, token_rows, lengths, scored, chunk)`, see there.
  """

  @functools.partial(jax.jit, donate_argnames="cache")
  def step(params, cache, tokens_BxT, targets_BxT, segment_ids_BxT):
    # Positions go on from where the cache ends.
    logits_BxTxV, cache = model.apply(
        {"params": params},
        tokens_BxT,
        segment_ids=segment_ids_BxT,
        cache=cache,
    )
    log_probs_BxTxV = jax.nn.log_softmax(logits_BxTxV.astype(jnp.float32))
    picked_BxTx1 = jnp.take_along_axis(
        log_probs_BxTxV, targets_BxT[..., None], axis=-1
    )
    return -picked_BxTx1[..., 0], cache

  def segment_nats(
      params: Any,
      token_rows: np.ndarray,
      lengths: Sequence[int],
      scored: Sequence[int],
      chunk: int,
  ) -> list[np.ndarray]:
    """Returns the nats of each segment's last `scored` targets.

    The result does not depend on `chunk`, nor on the other rows; except for
    DAPE V2 with edge="zero", whose last row depends on where the matrix ends.

    Args:
      params: the model's parameters.
      token_rows: [B, max(lengths) + 1] token ids; row b holds lengths[b] inputs
        and one more target, what follows is padding of any value.
      lengths: [B] inputs per row; 0 for a row that only fills the batch.
      scored: [B] how many of a row's last predictions are wanted.
      chunk: tokens of a row read at a time.

    Returns:
      B float32 arrays [scored[b]], in nats.
    """
    lengths_B = np.asarray(lengths)
    batch_size, longest = len(lengths_B), int(lengths_B.max())
    padded = -(-longest // chunk) * chunk
    tokens_BxT = np.zeros((batch_size, padded + 1), np.int32)
    tokens_BxT[:, : longest + 1] = token_rows[:, : longest + 1]
    # Padding may hold ids that the model has no embedding for.
    tokens_BxT[np.arange(padded + 1) > lengths_B[:, None]] = 0
    segment_ids_BxT = np.int32(np.arange(padded) < lengths_B[:, None])
    capacity = chunk
    cache = model.empty_cache(batch_size, capacity)
    nats = []
    for start in range(0, padded, chunk):
      end = start + chunk
      if end > capacity:
        capacity *= 2
        cache = grow_cache(cache, capacity)
      nats_BxT, cache = step(
          params,
          cache,
          tokens_BxT[:, start:end],
          tokens_BxT[:, start + 1 : end + 1],
          segment_ids_BxT[:, start:end],
      )
      nats.append(np.asarray(nats_BxT))
    nats_BxT = np.concatenate(nats, axis=1)
    return [
        row[length - count : length]
        for row, length, count in zip(nats_BxT, lengths, scored, strict=True)
    ]

  return segment_nats


def score_segments(
    segment_nats: Callable[..., list[np.ndarray]],
    params: Any,
    split: Any,
    segments: Iterable[Segment],
    *,
    batch_size: int,
    chunk: int,
    on_tokens: Callable[[int], Any] = lambda tokens: None,
) -> dict[Segment, np.ndarray]:
  """Returns the nats of each distinct segment, read in batches.

  Args:
    segment_nats: from `make_segment_nats`.
    params: the model's parameters.
    split: of a `data.Corpus`: `.tokens` and `.starts`.
    segments: what to read; repeated ones are read once.
    batch_size: segments read at a time, at most.
    chunk: tokens of a segment read at a time, at most.
    on_tokens: called with the number of tokens that were just read.

  Returns:
    {segment: float32 nats [segment.scored]}.
  """
  ordered = sorted(set(segments), key=lambda s: (s.length, s))
  rows = min(batch_size, len(ordered))
  nats = {}
  for first in range(0, len(ordered), rows or 1):
    batch = ordered[first : first + rows]
    longest = batch[-1].length
    # Every batch has the same number of rows: a new one would be a new
    # compilation.
    token_rows = np.zeros((rows, longest + 1), np.int32)
    for row, segment in zip(token_rows, batch):
      row[: segment.length + 1] = segment_tokens(
          split, segment, 0, segment.length + 1
      )
    empty_rows = [0] * (rows - len(batch))
    results = segment_nats(
        params,
        token_rows,
        [s.length for s in batch] + empty_rows,
        [s.scored for s in batch] + empty_rows,
        # A power of two, so that few different chunks are compiled.
        min(chunk, 1 << (longest - 1).bit_length()),
    )
    nats.update(zip(batch, results))
    on_tokens(sum(s.length for s in batch))
  return nats


def perplexity(nats: float, num_tokens: int) -> float:
  """Returns exp(nats / num_tokens); infinite when beyond float64."""
  with np.errstate(over="ignore"):
    return float(np.exp(np.float64(nats) / num_tokens))


def bits_per_byte(nats: float, num_bytes: int) -> float:
  """Returns nats / ln 2 / num_bytes; NaN when no byte was scored."""
  return nats / math.log(2) / num_bytes if num_bytes else math.nan


def segment_tokens(
    split: Any, segment: Segment, first: int, end: int
) -> np.ndarray:
  """Returns tokens [first, end) behind the segment's first input."""
  offset = int(split.starts[segment.document]) + segment.start
  return np.asarray(split.tokens[offset + first : offset + end])
