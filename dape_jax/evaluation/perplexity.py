"""Negative log-likelihood of segments under a language model.

Segments are read in chunks through the key/value cache, so that memory grows
with the length and not with its square; the cache's capacity doubles as it
fills, so that early chunks carry few slots from layer to layer.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dape_jax.attention import grow_cache
from dape_jax.attention.cache import next_power_of_two
from dape_jax.evaluation.protocols import Segment


class TokenScores(NamedTuple):
  """What a model says of consecutive targets.

  Attributes:
    nats: float32 [n], negative log-likelihoods.
    is_top: bool [n], whether the target is the argmax of the logits (of equal
      ones the first).
  """

  nats: np.ndarray
  is_top: np.ndarray


def make_step(model: Any) -> Callable[..., Any]:
  """Returns the jitted step that reads one chunk, see `make_segment_scores`.

  It is called with (params, cache, tokens_BxT, targets_BxT, segment_ids_BxT)
  and returns (nats_BxT, is_top_BxT, cache); the cache given is donated.
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
    nats_BxT = -picked_BxTx1[..., 0]
    is_top_BxT = jnp.argmax(logits_BxTxV, axis=-1) == targets_BxT
    # The argmax of logits that are all NaN is the first id.
    return nats_BxT, is_top_BxT & ~jnp.isnan(nats_BxT), cache

  return step


def make_segment_scores(
    model: Any, step: Callable[..., Any] | None = None
) -> Callable[..., list[TokenScores]]:
  """Returns the function that reads segments, compiled once for `model`.

  It compiles one step for each (batch size, chunk size, cache capacity).

  Args:
    model: decoder such as `models.Transformer`: `model.apply({"params":
      params}, tokens_BxT, segment_ids=, cache=)` returns float32 logits
      [B, T, V] and the cache; `model.empty_cache(batch_size, capacity)`.
    step: of `make_step(model)`, to share its compiled programs.

  Returns:
    `segment_scores(params, token_rows, lengths, scored, chunk)`, see there.
  """
  step = make_step(model) if step is None else step

  def segment_scores(
      params: Any,
      token_rows: np.ndarray,
      lengths: Sequence[int],
      scored: Sequence[int],
      chunk: int,
      on_tokens: Callable[[int], Any] = lambda tokens: None,
  ) -> list[TokenScores]:
    """Returns the scores of each segment's last `scored` targets.

    The result does not depend on `chunk`, nor on the other rows; except for
    DAPE V2 with edge="zero", whose last row depends on where the matrix ends.

    Args:
      params: the model's parameters.
      token_rows: [B, max(lengths) + 1] token ids; row b holds lengths[b] inputs
        and one more target, what follows is padding of any value.
      lengths: [B] inputs per row; 0 for a row that only fills the batch.
      scored: [B] how many of a row's last predictions are wanted.
      chunk: tokens of a row read at a time.
      on_tokens: called after each chunk with how many tokens it had.

    Returns:
      The scores of each row's last `scored[b]` targets.
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
    chunks = []
    for start in range(0, padded, chunk):
      end = start + chunk
      if end > capacity:
        capacity *= 2
        cache = grow_cache(cache, capacity)
      *scores, cache = step(
          params,
          cache,
          tokens_BxT[:, start:end],
          tokens_BxT[:, start + 1 : end + 1],
          segment_ids_BxT[:, start:end],
      )
      chunks.append(scores)
      # The device reads this chunk while the host waits for the one before it.
      if len(chunks) > 1:
        chunks[-2] = jax.device_get(chunks[-2])
      on_tokens(int(segment_ids_BxT[:, start:end].sum()))
    nats_BxT, is_top_BxT = (
        np.concatenate(parts, axis=1)
        for parts in zip(*jax.device_get(chunks), strict=True)
    )
    return [
        TokenScores(nats[length - n : length], is_top[length - n : length])
        for nats, is_top, length, n in zip(
            nats_BxT, is_top_BxT, lengths, scored, strict=True
        )
    ]

  return segment_scores


def chunk_for(longest: int, chunk: int) -> int:
  """Returns the tokens read at a time of texts of up to `longest` tokens.

  `chunk`, or for short texts a power of two, so that few different ones are
  compiled.
  """
  return min(chunk, next_power_of_two(longest))


def score_segments(
    segment_scores: Callable[..., list[TokenScores]],
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
    segment_scores: from `make_segment_scores`.
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
    results = segment_scores(
        params,
        token_rows,
        [s.length for s in batch] + empty_rows,
        [s.scored for s in batch] + empty_rows,
        chunk_for(longest, chunk),
        on_tokens,
    )
    nats.update((s, scores.nats) for s, scores in zip(batch, results))
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
