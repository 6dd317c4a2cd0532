"""Retrieval from long texts (passkey and needle tasks)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dape_jax.errors import ConfigError
from dape_jax.evaluation.perplexity import TokenScores, chunk_for
from dape_jax.evaluation.tasks.prompts import Prompt, make_prompt


def score_retrieval(
    segment_scores: Callable[..., list[TokenScores]],
    params: Any,
    tokenizer: Any,
    task: str,
    lengths: Sequence[int],
    depths: Sequence[float | None],
    samples: int,
    batch_size: int,
    chunk: int,
    seed: int,
) -> list[dict[str, Any]]:
  """Returns the retrieval accuracy by length and depth.

  An answer counts as an exact match if each of its tokens is the model's most
  likely one given the prompt and the preceding tokens. Greedy decoding emits
  the same tokens up to its first mistake, so its exact match is the same.
  Sample i has the same keys and numbers at all lengths and depths.

  Args:
    segment_scores: from `perplexity.make_segment_scores`. If the encoding
      depends on the text length, it must match `lengths`.
    params: the model's parameters.
    tokenizer: of the model; only `.encode` is used.
    task: a name in `prompts.TASKS`.
    lengths: exact number of inputs per text.
    depths: see `prompts.make_prompt`.
    samples: texts for each length and depth.
    batch_size: maximum texts per batch.
    chunk: maximum tokens per step.
    seed: for keys, numbers and places.

  Returns:
    One {task, length, depth, samples, exact_match, token_accuracy} for each
    length and depth, in their order: the mean over texts, and the mean over all
    tokens of their answers.

  Raises:
    ConfigError: `samples` is not positive, or see `prompts.make_prompt`; raised
      before any text is evaluated.
  """
  if samples < 1:
    raise ConfigError(f"samples={samples}: must be greater than 0.")

  def prompt(length: int, depth: float | None, sample: int) -> Prompt:
    rng = np.random.default_rng([seed, sample])
    return make_prompt(tokenizer, task, length, depth, rng)

  # Make all prompts first, so that a length that is too short fails early.
  prompts_of_lengths = [
      [prompt(length, depth, i) for depth in depths for i in range(samples)]
      for length in lengths
  ]
  rows = []
  for length, prompts in zip(lengths, prompts_of_lengths, strict=True):
    hits = _answer_hits(segment_scores, params, prompts, batch_size, chunk)
    for i, depth in enumerate(depths):
      of_depth = hits[i * samples : (i + 1) * samples]
      rows.append(
          {
              "task": task,
              "length": length,
              "depth": depth,
              "samples": samples,
              "exact_match": float(np.mean([hit.all() for hit in of_depth])),
              "token_accuracy": float(np.concatenate(of_depth).mean()),
          }
      )
  return rows


def _answer_hits(
    segment_scores: Callable[..., list[TokenScores]],
    params: Any,
    prompts: list[Prompt],
    batch_size: int,
    chunk: int,
) -> list[np.ndarray]:
  """Returns which answer tokens are the argmax, for each prompt.

  Args:
    segment_scores: see `score_retrieval`.
    params: see there.
    prompts: of equal length.
    batch_size: prompts per batch.
    chunk: maximum tokens per step.

  Returns:
    Booleans [num_answers] for each prompt.
  """
  length = len(prompts[0].tokens) - 1
  # Another number of rows, or another chunk, would compile another program.
  batch_size = min(batch_size, len(prompts))
  chunk = chunk_for(length, chunk)
  hits = []
  for first in range(0, len(prompts), batch_size):
    batch = prompts[first : first + batch_size]
    empty_rows = batch_size - len(batch)
    token_rows = np.zeros((batch_size, length + 1), np.int32)
    token_rows[: len(batch)] = [prompt.tokens for prompt in batch]
    scores = segment_scores(
        params,
        token_rows,
        [length] * len(batch) + [0] * empty_rows,
        [prompt.num_answers for prompt in batch] + [0] * empty_rows,
        chunk,
    )
    hits += [score.is_top for score in scores[: len(batch)]]
  return hits
