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

# Of the problems that are scored; no run trains on them (see training/batches.py).
_SEED = 2**32 + 1


def longest_row(
    task_name: str, lengths: Sequence[int], max_position: int = 0
) -> int:
  """Returns how many tokens the longest row has of problems of these lengths.

  Raises:
    ConfigError: the task has no problems so short or so long, or there are fewer
      randomized positions (`max_position`, 0 for none).
  """
  row_length = max(map(tasks.make(task_name).row_length, lengths))
  if max_position and max_position < row_length:
    raise ConfigError(
        f"--lengths: rows of {row_length} tokens, but"
        f" config.train.max_position={max_position}: use shorter problems."
    )
  return row_length


def padded_length(row_length: int, longest: int) -> int:
  """Returns the smallest of longest, longest / 4, longest / 16 ... that holds a row.

  Compiling takes longer than reading short rows, and shorter than reading them at
  the length of the longest.
  """
  while row_length <= longest // 4:
    longest //= 4
  return longest


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
  """Returns how often the most probable answer is the right one, by length.

  The problems and their positions depend on nothing but the task, the length and
  `samples`. Rows are padded to one of few lengths, so that few programs read all.

  Args:
    model: `model.apply({"params": params}, tokens, segment_ids=, positions=)`
      returns logits [B, T, num_outputs].
    params: its parameters.
    task_name: name of the task.
    lengths: of the problems.
    samples: problems of each length.
    batch_size: problems read at a time, at most.
    max_position: read at randomized positions below it (arXiv 2305.16843, which
      does so in training and in test); 0 takes 0, 1, 2, ...

  Returns:
    One row a length: length, samples, answers (scored places), accuracy (right
    answers / answers, so weighted by place), exact_match (problems with all
    answers right / problems).

  Raises:
    ConfigError: see `longest_row`.
  """
  task = tasks.make(task_name)
  longest = longest_row(task_name, lengths, max_position)
  batch_size = min(batch_size, samples)

  @jax.jit
  def answers(params, tokens_BxT, segment_ids_BxT, positions_BxT, key, rows_B):
    if max_position:
      # A key for each row, so that they do not depend on the batches.
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
    """Returns whether each place's answer is right, bool [samples, T]."""
    rows = padded_rows(
        examples, padded_length(task.row_length(length), longest)
    )
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
  """Returns the papers' score: the mean over the lengths beyond training's."""
  beyond = [r["accuracy"] for r in rows if r["length"] > train_length]
  return float(np.mean(beyond)) if beyond else float("nan")
