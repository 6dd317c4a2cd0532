"""Batched scoring and generation for lm-evaluation-harness requests."""

import collections
import functools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dape_jax.attention.cache import next_power_of_two
from dape_jax.errors import ConfigError, did_you_mean
from dape_jax.evaluation.perplexity import make_segment_scores
from dape_jax.generate.sampler import generate
from dape_jax.models.layer_encodings import check_positions

logger = logging.getLogger(__name__)

# Maximum number of tokens per prefill step.
_CHUNK = 512
# Minimum bucket length; shorter texts share one program.
_SHORTEST = 64
# One compilation per model.
_segment_scores_of = functools.cache(make_segment_scores)


class ScoredText(NamedTuple):
  """A text to score.

  Attributes:
    tokens: token ids.
    scored: number of final tokens to score, each given all tokens before it.
  """

  tokens: list[int]
  scored: int


class Generation(NamedTuple):
  """Settings of text generation.

  Attributes:
    until: stop strings; the text ends before the first occurrence of any.
    max_new_tokens, temperature, top_k, top_p: see `sampler.generate`.
  """

  until: tuple[str, ...]
  max_new_tokens: int
  temperature: float
  top_k: int
  top_p: float


_GENERATION_KWARGS = (
    "do_sample",
    "max_gen_toks",
    "temperature",
    "top_k",
    "top_p",
    "until",
)


def generation_of(gen_kwargs: Mapping[str, Any]) -> Generation:
  """Returns the generation settings of a request.

  Args:
    gen_kwargs: result of the harness' `normalize_gen_kwargs`: `until`,
      `max_gen_toks`, `do_sample` and optionally `temperature` (default 0, the
      most likely token), `top_k` and `top_p`.

  Raises:
    ConfigError: another setting is given, or beam search.
  """
  kwargs = dict(gen_kwargs)
  # Some tasks set num_beams=1 explicitly.
  if kwargs.pop("num_beams", 1) != 1:
    raise ConfigError(
        "gen_kwargs num_beams: beam search is not supported; set 1."
    )
  for name in kwargs:
    if name not in _GENERATION_KWARGS:
      raise ConfigError(
          f"gen_kwargs {name} is not supported."
          f"{did_you_mean(name, _GENERATION_KWARGS)}"
      )
  temperature = float(kwargs.get("temperature", 0.0))
  return Generation(
      until=tuple(text for text in kwargs["until"] if text),
      max_new_tokens=kwargs["max_gen_toks"],
      temperature=temperature if kwargs["do_sample"] else 0.0,
      top_k=int(kwargs.get("top_k", 0)),
      top_p=float(kwargs.get("top_p", 1.0)),
  )


def cut_left(
    texts: list[list[int]], *, limit: int | None, needed: int
) -> list[list[int]]:
  """Returns the last `limit` tokens of each text; None keeps all.

  Logs how many texts are truncated.

  Raises:
    ConfigError: the limit is below `needed`, the tokens that a text needs.
  """
  if limit is None:
    return texts
  if limit < needed:
    raise ConfigError(
        f"max_length leaves {limit} tokens for a text that needs {needed};"
        f" increase it by {needed - limit} or more."
    )
  num_cut = sum(len(text) > limit for text in texts)
  if num_cut:
    logger.warning(
        "max_length: %d of %d texts are truncated on the left to %d tokens.",
        num_cut,
        len(texts),
        limit,
    )
  return [text[-limit:] for text in texts]


def batches_by_length(
    lengths: Sequence[int], batch_size: int
) -> list[tuple[int, list[int]]]:
  """Groups texts into batches by the next power of two of their lengths.

  This limits the number of compiled shapes. A text's power of two does not
  depend on the other texts.

  Args:
    lengths: number of tokens of each text.
    batch_size: maximum batch size.

  Returns:
    [(power of two, indices into `lengths`)], longest texts first, so that an
    out-of-memory error occurs at once. The power is at least 64.
  """
  buckets = collections.defaultdict(list)
  for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
    length = max(lengths[index], _SHORTEST)
    buckets[next_power_of_two(length)].append(index)
  return [
      (bucket, indices[first : first + batch_size])
      for bucket, indices in buckets.items()
      for first in range(0, len(indices), batch_size)
  ]


def read_texts(
    model: Any,
    params: Any,
    scored_texts: Sequence[ScoredText],
    *,
    batch_size: int,
) -> Iterator[tuple[int, float, bool]]:
  """Yields (index, log-likelihood, is_greedy) of each text, longest first.

  Skips texts without scored tokens. A log-likelihood is the sum over the scored
  tokens, in nats; is_greedy is true if each of them is the most likely token.

  Args:
    model: `models.Transformer`.
    params: parameters of the model.
    scored_texts: texts to score.
    batch_size: maximum batch size.

  Raises:
    ConfigError: a text exceeds the position limit of an encoding.
  """
  wanted = [
      i for i, scored_text in enumerate(scored_texts) if scored_text.scored
  ]
  lengths = [len(scored_texts[i].tokens) - 1 for i in wanted]
  longest = max(lengths, default=0)
  check_positions(model.config, longest, f"a text of {longest} tokens")
  non_finite = 0
  for bucket, batch in batches_by_length(lengths, batch_size):
    # Pad with empty rows to limit the number of compiled batch sizes.
    rows = min(next_power_of_two(len(batch)), batch_size)
    token_rows = np.zeros((rows, lengths[batch[0]] + 1), np.int32)
    row_lengths, scored = np.zeros((2, rows), int)
    for row, i in enumerate(batch):
      row_lengths[row] = lengths[i]
      token_rows[row, : lengths[i] + 1], scored[row] = scored_texts[wanted[i]]
    scores = _segment_scores_of(model.at_length(bucket))(
        params, token_rows, row_lengths, scored, min(_CHUNK, bucket)
    )
    for i, (nats, is_top) in zip(batch, scores):
      log_likelihood = -float(nats.sum(dtype=np.float64))
      non_finite += not math.isfinite(log_likelihood)
      yield wanted[i], log_likelihood, bool(is_top.all())
  if non_finite:
    logger.warning(
        "%d of %d log-likelihoods are not finite; metrics that use them are not"
        " either.",
        non_finite,
        len(wanted),
    )


def write_texts(
    model: Any,
    params: Any,
    prompts: Sequence[Sequence[int]],
    generation: Generation,
    *,
    batch_size: int,
    stop_tokens: Sequence[int],
    vocab_size: int,
) -> Iterator[tuple[int, np.ndarray]]:
  """Yields (index, new tokens) of each prompt, longest first.

  Each batch takes its seed from `np.random`, which the harness seeds.

  Args:
    model: `models.Transformer`.
    params: parameters of the model.
    prompts: token ids, at least one per prompt.
    generation: settings; `until` is ignored.
    batch_size: maximum batch size.
    stop_tokens, vocab_size: see `sampler.generate`.

  Raises:
    ConfigError: see `sampler.generate`.
  """
  lengths = [len(prompt) + generation.max_new_tokens for prompt in prompts]
  for bucket, batch in batches_by_length(lengths, batch_size):
    # Repeat the first text to limit the number of compiled batch sizes.
    rows = min(next_power_of_two(len(batch)), batch_size)
    repeated = batch + batch[:1] * (rows - len(batch))
    new = generate(
        model.at_length(bucket),
        params,
        [np.array(prompts[i], np.int32) for i in repeated],
        max_new_tokens=generation.max_new_tokens,
        temperature=generation.temperature,
        top_k=generation.top_k,
        top_p=generation.top_p,
        seed=int(np.random.randint(2**32, dtype=np.uint32)),
        stop_tokens=stop_tokens,
        vocab_size=vocab_size,
    )
    yield from zip(batch, new)
