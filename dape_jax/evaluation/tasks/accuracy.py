"""Accuracy of a trained model on generated tasks, by length."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dape_jax.data import tasks
from dape_jax.data.task_batches import padded_rows
from dape_jax.encodings import randomized_positions
from dape_jax.errors import ConfigError

# Seed of the scored problems; training never uses it (training/run.py).
_SEED = 2**32 + 1


def longest_row(
    task_name: str, lengths: Sequence[int], max_position: int = 0
) -> int:
  """Returns the number of tokens in the longest row at these lengths.

  Raises:
    ConfigError: the task has no problems of some length, or too few randomized
      positions (`max_position`, 0 for none).
  """
  row_length = max(map(tasks.make(task_name).row_length, lengths))
  if max_position and max_position < row_length:
    raise ConfigError(
        f"--lengths: rows of {row_length} tokens, but"
        f" config.train.max_position={max_position}: use shorter problems."
    )
  return row_length


def task_accuracy(
    model: Any,
    params: Any,
    task_name: str,
    lengths: Sequence[int],
    *,
    samples: int,
    batch_size: int,
    max_position: int = 0,
) -> list[dict[str, Any]]:
  """Returns the accuracy of the most likely answers, by length.

  The problems and their positions depend only on the task, the length and
  `samples`. Rows are padded to the longest length divided by a power of 4.

  Args:
    model: `model.apply({"params": params}, tokens, segment_ids=, positions=)`
      returns logits [B, T, num_outputs].
    params: its parameters.
    task_name: name of the task.
    lengths: of the problems.
    samples: problems of each length.
    batch_size: maximum problems per batch.
    max_position: use randomized positions below it (arXiv 2305.16843, which
      does so in training and in test); 0 takes 0, 1, 2, ...

  Returns:
    One row per length: length, samples, answers (number of scored places),
    accuracy (fraction of correct answers, weighted by place), exact_match
    (fraction of problems with all answers correct).

  Raises:
    ConfigError: see `longest_row`.
  """
  task = tasks.make(task_name)
  longest = longest_row(task_name, lengths, max_position)
  batch_size = min(batch_size, samples)

  @jax.jit
  def answers(params, tokens_BxT, segment_ids_BxT, positions_BxT, key, rows_B):
    if max_position:
      # One key per row, so that positions do not depend on the batch size.
      keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, rows_B)
      draw = functools.partial(randomized_positions, max_length=max_position)
      positions_BxT = jax.vmap(draw)(keys_B, positions_BxT)
    logits_BxTxV = model.apply(
        {"params": params},
        tokens_BxT,
        segment_ids=segment_ids_BxT,
        positions=positions_BxT,
    )
    return logits_BxTxV.argmax(-1)

  def is_right(examples, length):
    """Returns whether the answer at each place is correct, [samples, T]."""
    # Few padded lengths balance compilation time against wasted computation.
    padded = longest
    while task.row_length(length) <= padded // 4:
      padded //= 4
    rows = padded_rows(examples, padded)
    right = []
    for begin in range(0, samples, batch_size):
      batch = [
          rows[name][begin : begin + batch_size]
          for name in ("inputs", "segment_ids", "positions")
      ]
      missing = batch_size - len(batch[0])
      batch = [np.pad(x, ((0, missing), (0, 0))) for x in batch]
      key = jax.random.key(length)
      indices = np.arange(begin, begin + batch_size)
      right.append(np.asarray(answers(params, *batch, key, indices)))
    return np.concatenate(right)[:samples] == rows["targets"]

  results = []
  for length in lengths:
    rng = np.random.default_rng([_SEED, length])
    examples = task.sample(rng, length, samples)
    scored = examples.scored
    right = is_right(examples, length)[:, : scored.shape[1]]
    results.append(
        {
            "length": length,
            "samples": samples,
            "answers": int(scored.sum()),
            "accuracy": float(right[scored].mean()),
            "exact_match": float((right | ~scored).all(axis=1).mean()),
        }
    )
  return results


def mean_accuracy(rows: Sequence[dict[str, Any]], train_length: int) -> float:
  """Returns the papers' score: the mean over lengths beyond training."""
  beyond = [r["accuracy"] for r in rows if r["length"] > train_length]
  return float(np.mean(beyond)) if beyond else float("nan")
