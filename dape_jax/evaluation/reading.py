"""Nats of a plan's documents under one model, length by length."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from dape_jax.evaluation.memory import BatchSize
from dape_jax.evaluation.perplexity import (
    make_segment_scores,
    make_step,
    perplexity,
    score_segments,
)
from dape_jax.evaluation.plan import Plan, Readings
from dape_jax.evaluation.progress import Progress
from dape_jax.evaluation.protocols import Segment


def read_lengths(
    model: Any,
    params: Any,
    plan: Plan,
    *,
    lengths: Sequence[int],
    train_length: int,
    batch_size: BatchSize,
    chunk: int,
    step_of: Callable[[Any], Any] = make_step,
    label: str = "evaluation",
) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields each length with what was read, as soon as it is.

  Args:
    model: see `make_segment_scores`; `model.at_length(length)` is the model for
      texts of up to that many tokens.
    params: its parameters.
    plan: what to read.
    lengths: those of the plan that are wanted.
    train_length: context of the crop baseline, see `protocols.crop`.
    batch_size: chooses how many segments are read at a time.
    chunk: tokens of a segment read at a time.
    step_of: `make_step`, or one that remembers what it made.
    label: name of the run in progress messages.

  Yields:
    A length and a dict of what JSON has: document_nats and crop_document_nats
    (of each document), non_finite_tokens and crop_non_finite_tokens, positions
    (see `_positions`; None for other protocols) and seconds (of reading,
    without the crop baseline; what a length before has read counts there).
  """
  params = jax.device_put(params, jax.local_devices()[0])
  read = {length: plan.readings(length) for length in lengths}
  cropped = {length: plan.crops(length, train_length) for length in lengths}
  # Other lengths often ask for the same readings, crops above all. The encoding
  # of some models depends on the length that is read.
  known: dict[Any, dict[Segment, np.ndarray]] = {}

  def model_for(readings: Readings) -> Any:
    return model.at_length(max(s.length for d in readings for s in d))

  distinct = {
      (model_for(readings), s)
      for plans in (read, cropped)
      for readings in plans.values()
      for d in readings
      for s in d
  }
  progress = Progress(sum(s.length for _, s in distinct), label)

  def score(readings: Readings, what: str) -> list[np.ndarray]:
    at_length = model_for(readings)
    nats = known.setdefault(at_length, {})
    new = {s for d in readings for s in d} - nats.keys()
    if new:
      step = step_of(at_length)
      longest = max(s.length for s in new)
      rows = batch_size(step, at_length, params, longest, len(new))
      progress.line(f"{what}: {len(new)} texts, {rows} at a time")
      nats.update(
          score_segments(
              make_segment_scores(at_length, step),
              params,
              plan.split,
              new,
              batch_size=rows,
              chunk=chunk,
              on_tokens=progress.advance,
          )
      )
    return [np.concatenate([nats[s] for s in d]) for d in readings]

  # What fits for the longest need not be measured for the others.
  longest = max(lengths)
  at_length = model_for(read[longest])
  num_texts = sum(map(len, read[longest]))
  batch_size(step_of(at_length), at_length, params, longest, num_texts)
  num_tokens = sum(map(len, plan.targets))
  for length in lengths:
    began = time.monotonic()
    nats = score(read[length], f"length {length}")
    seconds = time.monotonic() - began
    crop_nats = score(cropped[length], f"length {length}, crop")
    positions = None
    if plan.edges is not None:
      positions = _positions(plan.edges, nats, crop_nats)
    reading = {
        **_sums("", nats),
        **_sums("crop_", crop_nats),
        "positions": positions,
        "seconds": seconds,
    }
    shown, crop = (
        f"{perplexity(sum(reading[name]), num_tokens):.4g}"
        for name in ("document_nats", "crop_document_nats")
    )
    progress.line(
        f"length {length}: perplexity {shown}, crop {crop}, {seconds:.1f} s"
    )
    yield length, reading
  progress.close()


def _sums(prefix: str, nats: list[np.ndarray]) -> dict[str, Any]:
  return {
      f"{prefix}document_nats": [float(n.sum(dtype=np.float64)) for n in nats],
      f"{prefix}non_finite_tokens": int(
          sum((~np.isfinite(n)).sum() for n in nats)
      ),
  }


def _positions(
    edges: Sequence[int],
    nats: list[np.ndarray],
    crop_nats: list[np.ndarray],
) -> list[dict[str, Any]]:
  """Returns one entry for each bucket of positions within the regions.

  Args:
    edges: where buckets begin, and where the last one ends.
    nats, crop_nats: of each document, its regions one after the other.
  """
  by_position, crop = (
      np.concatenate(n).reshape(-1, edges[-1]).astype(np.float64)
      for n in (nats, crop_nats)
  )
  entries = []
  for begin, end in itertools.pairwise(edges):
    tokens = len(by_position) * (end - begin)
    sums = [float(n[:, begin:end].sum()) for n in (by_position, crop)]
    entries.append(
        {
            "begin": begin,
            "end": end,
            "tokens": tokens,
            "nats": sums[0],
            "loss": sums[0] / tokens,
            "crop_nats": sums[1],
            "crop_loss": sums[1] / tokens,
        }
    )
  return entries
