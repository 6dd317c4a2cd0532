"""Perplexity at several context lengths, on the same tokens."""

import functools
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import tqdm

from dape_jax.evaluation import protocols
from dape_jax.evaluation.perplexity import (
    bits_per_byte,
    make_segment_nats,
    perplexity,
    score_segments,
    segment_tokens,
)
from dape_jax.evaluation.protocols import Segment


class Progress:
  """Tokens read so far: a bar on a terminal, else a line now and then."""

  _SECONDS_BETWEEN_LINES = 30

  def __init__(self, total: int, label: str):
    self._label = label
    self._last_line = time.monotonic()
    self._on_terminal = sys.stderr.isatty()
    self._bar = tqdm.tqdm(
        total=total,
        desc=label,
        unit="tok",
        unit_scale=True,
        disable=not self._on_terminal,
    )
    self._done, self._total = 0, total

  def advance(self, tokens: int) -> None:
    self._bar.update(tokens)
    self._done += tokens
    now = time.monotonic()
    due = now - self._last_line > self._SECONDS_BETWEEN_LINES
    if due and not self._on_terminal:
      self.line(f"{self._done:,} of {self._total:,} tokens read")

  def line(self, text: str) -> None:
    tqdm.tqdm.write(f"{self._label}: {text}", file=sys.stderr)
    self._last_line = time.monotonic()

  def close(self) -> None:
    self._bar.close()


def evaluate(
    model: Any,
    params: Any,
    split: Any,
    tokenizer: Any,
    *,
    lengths: Sequence[int],
    train_length: int,
    protocol: str,
    max_regions: int,
    batch_size: int,
    chunk: int,
    label: str = "evaluation",
) -> list[dict[str, Any]]:
  """Returns one row of results per length, all on the same tokens.

  Args:
    model: see `make_segment_nats`; `model.at_length(length)` is the model for
      texts of up to that many tokens.
    params: its parameters.
    split: of a `data.Corpus`: `.tokens` and `.starts`.
    tokenizer: of the corpus; only `.num_bytes` is used.
    lengths: inputs per reading.
    train_length: context of the crop baseline, see `protocols.crop`.
    protocol: a name in `protocols.PROTOCOLS`.
    max_regions: at most so many regions of the longest length are scored.
    batch_size: segments read at a time.
    chunk: tokens of a segment read at a time.
    label: name of the run in progress messages.

  Returns:
    Rows with the fields that `report` documents, in the order of `lengths`.

  Raises:
    ConfigError: unknown protocol, or no document is long enough.
  """
  segments_of = protocols.protocol(protocol)
  regions = protocols.choose_regions(
      np.diff(split.starts), max(lengths), max_regions
  )
  # Segments per length and region.
  read = [[segments_of(r, length) for r in regions] for length in lengths]
  cropped = [
      [
          [w for s in region for w in protocols.crop(s, train_length)]
          for region in plan
      ]
      for plan in read
  ]
  targets = np.concatenate(
      [
          segment_tokens(split, s, s.length - s.scored + 1, s.length + 1)
          for region in read[0]
          for s in region
      ]
  )
  num_bytes = int(tokenizer.num_bytes(targets).sum())
  # Other lengths often ask for the same readings, crops above all.
  known: dict[Segment, np.ndarray] = {}
  # What a model's encoding makes of the length is settled before a text is read.
  segment_nats_of = functools.cache(make_segment_nats)
  # Once, and not in every step.
  params = jax.device_put(params, jax.local_devices()[0])
  distinct = {s for plan in read + cropped for region in plan for s in region}
  progress = Progress(sum(s.length for s in distinct), label)

  def score(plan: list[list[Segment]]) -> list[np.ndarray]:
    new = {s for region in plan for s in region} - known.keys()
    longest = max((s.length for s in new), default=1)
    known.update(
        score_segments(
            segment_nats_of(model.at_length(longest)),
            params,
            split,
            new,
            batch_size=batch_size,
            chunk=chunk,
            on_tokens=progress.advance,
        )
    )
    return [np.concatenate([known[s] for s in region]) for region in plan]

  rows = []
  for length, plan, crop_plan in zip(lengths, read, cropped, strict=True):
    began = time.monotonic()
    nats = score(plan)
    seconds = time.monotonic() - began
    row = {
        "length": length,
        "protocol": protocol,
        "regions": len(regions),
        "tokens": len(targets),
        "bytes": num_bytes,
        **_totals("", nats, len(targets), num_bytes),
        **_totals("crop_", score(crop_plan), len(targets), num_bytes),
        "seconds": seconds,
    }
    progress.line(
        f"length {length}: perplexity {row['perplexity']:.4g}, crop"
        f" {row['crop_perplexity']:.4g}, {seconds:.1f} s"
    )
    rows.append(row)
  progress.close()
  return rows


def _totals(
    prefix: str, region_nats: list[np.ndarray], num_tokens: int, num_bytes: int
) -> dict[str, Any]:
  """Returns the fields of a row that follow from nats per scored token."""
  sums = [float(nats.sum(dtype=np.float64)) for nats in region_nats]
  nats = float(np.sum(sums, dtype=np.float64))
  non_finite = int((~np.isfinite(np.concatenate(region_nats))).sum())
  return {
      f"{prefix}nats": nats,
      f"{prefix}perplexity": perplexity(nats, num_tokens),
      f"{prefix}bits_per_byte": bits_per_byte(nats, num_bytes),
      f"{prefix}non_finite_tokens": non_finite,
      f"{prefix}region_nats": sums,
  }
