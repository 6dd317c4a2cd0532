"""Accuracy of a trained model on generated tasks, by length."""

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

  The problems depend on nothing but the task, the length and `samples`. Rows are
  padded to the longest, so that one program reads all.

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
    ConfigError: longer problems than there are randomized positions.
  """
  task = tasks.make(task_name)
  row_length = max(task.row_length(length) for length in lengths)
  if max_position and max_position < row_length:
    raise ConfigError(
        f"--lengths: rows of {row_length} tokens, but"
        f" config.train.max_position={max_position}: use shorter problems."
    )
  batch_size = min(batch_size, samples)

  @jax.jit
  def answers(params, tokens_BxT, segment_ids_BxT, positions_BxT, key):
    if max_position:
      positions_BxT = randomized_positions(key, positions_BxT, max_position)
    logits_BxTxV = model.apply(
        {"params": params},
        tokens_BxT,
        segment_ids=segment_ids_BxT,
        positions=positions_BxT,
    )
    return logits_BxTxV.argmax(-1)

  def is_right(examples, first):
    """Returns whether each place's answer is right, bool [samples, T]."""
    rows = padded_rows(examples, row_length)
    right = []
    for begin in range(0, samples, batch_size):
      batch = [
          rows[name][begin : begin + batch_size]
          for name in ("inputs", "segment_ids", "positions")
      ]
      missing = batch_size - len(batch[0])
      batch = [np.pad(x, ((0, missing), (0, 0))) for x in batch]
      key = jax.random.fold_in(jax.random.key(first), begin)
      right.append(np.asarray(answers(params, *batch, key)))
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
