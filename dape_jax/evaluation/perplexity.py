"""Negative log-likelihood of segments under a language model.

Segments are processed in chunks through the key/value cache, so memory is
linear in the length, not quadratic. The cache starts small and doubles its
capacity as it fills, which keeps early chunks cheap.
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
  """Scores of consecutive targets under a model.

  Attributes:
    nats: float32 [n], negative log-likelihoods.
    is_top: bool [n], whether the target is the argmax of the logits (the first
      if tied).
  """

  nats: np.ndarray
  is_top: np.ndarray


def make_step(model: Any) -> Callable[..., Any]:
  """Returns the jitted step that scores one chunk.

  The step maps (params, cache, tokens_BxT, targets_BxT, segment_ids_BxT) to
  (nats_BxT, is_top_BxT, cache); it donates the cache.
  """

  @functools.partial(jax.jit, donate_argnames="cache")
  def step(params, cache, tokens_BxT, targets_BxT, segment_ids_BxT):
    # Positions continue from the end of the cache.
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
    # argmax of all-NaN logits is id 0, which must not count as a hit.
    return nats_BxT, is_top_BxT & ~jnp.isnan(nats_BxT), cache

  return step


def make_segment_scores(
    model: Any, step: Callable[..., Any] | None = None
) -> Callable[..., list[TokenScores]]:
  """Returns a function that scores segments under `model`.

  It compiles one step for each (batch size, chunk size, cache capacity).

  Args:
    model: decoder such as `models.Transformer`: `model.apply({"params":
      params}, tokens_BxT, segment_ids=, cache=)` returns float32 logits
      [B, T, V] and the cache; `model.empty_cache(batch_size, capacity)`.
    step: from `make_step(model)`, to share its compiled programs.

  Returns:
    `segment_scores(params, token_rows, lengths, scored, chunk)`, see below.
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

    The result depends neither on `chunk` nor on the other rows, except for
    DAPE V2 with edge="zero", whose last row depends on where the matrix ends.

    Args:
      params: the model's parameters.
      token_rows: [B, max(lengths) + 1] token ids; row b holds lengths[b] inputs
        and one more target, followed by padding of any value.
      lengths: [B] inputs per row; 0 for a row that pads the batch.
      scored: [B] number of final predictions to return per row.
      chunk: tokens per step.
      on_tokens: called after each chunk with its number of tokens.

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
      # Fetch the previous chunk while the device computes this one.
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
  """Returns the chunk size for texts of up to `longest` tokens.

  At most `chunk`; a power of two for short texts, to compile few programs.
  """
  return min(chunk, next_power_of_two(longest))


def score_texts(
    segment_scores: Callable[..., list[TokenScores]],
    params: Any,
    texts: Sequence[tuple[np.ndarray, int]],
    *,
    batch_size: int,
    chunk: int,
) -> list[TokenScores]:
  """Returns the scores of each text, in batches.

  Args:
    segment_scores: from `make_segment_scores`.
    params: the model's parameters.
    texts: pairs of token ids [length + 1] and the number of final targets to
      score; texts of similar length next to each other waste least.
    batch_size: maximum texts per batch.
    chunk: maximum tokens per step.
  """
  rows = min(batch_size, len(texts))
  scores = []
  for first in range(0, len(texts), rows or 1):
    batch = texts[first : first + rows]
    longest = max(len(tokens) for tokens, _ in batch) - 1
    # A different number of rows would compile another program.
    token_rows = np.zeros((rows, longest + 1), np.int32)
    lengths, scored = [0] * rows, [0] * rows
    for row, (tokens, num_scored) in enumerate(batch):
      token_rows[row, : len(tokens)] = tokens
      lengths[row], scored[row] = len(tokens) - 1, num_scored
    scores += segment_scores(
        params, token_rows, lengths, scored, chunk_for(longest, chunk)
    )[: len(batch)]
  return scores


def score_segments(
    segment_scores: Callable[..., list[TokenScores]],
    params: Any,
    split: Any,
    segments: Iterable[Segment],
    *,
    batch_size: int,
    chunk: int,
) -> dict[Segment, np.ndarray]:
  """Returns the nats of each distinct segment, float32 [segment.scored].

  Args:
    segment_scores, params, batch_size, chunk: see `score_texts`.
    split: of a `data.Corpus`: `.tokens` and `.starts`.
    segments: what to score; duplicates are scored once.
  """
  ordered = sorted(set(segments), key=lambda s: (s.length, s))
  texts = [
      (segment_tokens(split, s, 0, s.length + 1), s.scored) for s in ordered
  ]
  scores = score_texts(
      segment_scores, params, texts, batch_size=batch_size, chunk=chunk
  )
  return {s: score.nats for s, score in zip(ordered, scores, strict=True)}


def perplexity(nats: float, num_tokens: int) -> float:
  """Returns exp(nats / num_tokens), infinity on overflow."""
  with np.errstate(over="ignore"):
    return float(np.exp(np.float64(nats) / num_tokens))


def bits_per_byte(nats: float, num_bytes: int) -> float:
  """Returns nats / ln 2 / num_bytes; NaN if no byte was scored."""
  return nats / math.log(2) / num_bytes if num_bytes else math.nan


def segment_tokens(
    split: Any, segment: Segment, first: int, end: int
) -> np.ndarray:
  """Returns tokens [first, end), counted from the segment's first input."""
  offset = int(split.starts[segment.document]) + segment.start
  return np.asarray(split.tokens[offset + first : offset + end])
