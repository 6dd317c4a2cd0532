"""Retrieval from long texts (passkey and needle tasks)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dape_jax.errors import ConfigError
from dape_jax.evaluation.perplexity import TokenScores, score_texts
from dape_jax.evaluation.tasks.prompts import make_prompt


def score_retrieval(
    segment_scores: Callable[..., list[TokenScores]],
    params: Any,
    tokenizer: Any,
    task: str,
    length: int,
    depths: Sequence[float | None],
    samples: int,
    batch_size: int,
    chunk: int,
    seed: int,
) -> list[dict[str, Any]]:
  """Returns the retrieval accuracy at each depth.

  An answer counts as an exact match if each of its tokens is the model's most
  likely one given the prompt and the preceding tokens. Greedy decoding emits
  the same tokens up to its first mistake, so its exact match is the same.
  Sample i has the same keys and numbers at all lengths and depths.

  Args:
    segment_scores: from `perplexity.make_segment_scores`. If the encoding
      depends on the text length, it must match `length`.
    params: the model's parameters.
    tokenizer: of the model; only `.encode` is used.
    task: a name in `prompts.TASKS`.
    length: exact number of inputs per text.
    depths: see `prompts.make_prompt`.
    samples: texts per depth.
    batch_size: maximum texts per batch.
    chunk: maximum tokens per step.
    seed: for keys, numbers and places.

  Returns:
    One {task, length, depth, samples, exact_match, token_accuracy} per depth:
    exact_match is the mean over texts, token_accuracy the mean over all tokens
    of their answers.

  Raises:
    ConfigError: `samples` is not positive, or see `prompts.make_prompt`.
  """
  if samples < 1:
    raise ConfigError(f"samples={samples}: must be greater than 0.")
  prompts = [
      make_prompt(
          tokenizer, task, length, depth, np.random.default_rng([seed, sample])
      )
      for depth in depths
      for sample in range(samples)
  ]
  scores = score_texts(
      segment_scores, params, prompts, batch_size=batch_size, chunk=chunk
  )
  rows = []
  for i, depth in enumerate(depths):
    hits = [s.is_top for s in scores[i * samples : (i + 1) * samples]]
    rows.append(
        {
            "task": task,
            "length": length,
            "depth": depth,
            "samples": samples,
            "exact_match": float(np.mean([hit.all() for hit in hits])),
            "token_accuracy": float(np.concatenate(hits).mean()),
        }
    )
  return rows
