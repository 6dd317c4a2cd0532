"""The tokens that an evaluation scores, and their nats under one model.

A `Plan` fixes the same target tokens for every length and every run.
`score_lengths` scores them with any model and parameters; it needs no
checkpoint.
"""

import collections
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from dape_jax.evaluation import protocols
from dape_jax.evaluation.memory import BatchSize
from dape_jax.evaluation.perplexity import (
    make_segment_scores,
    make_step,
    perplexity,
    score_segments,
    segment_tokens,
)
from dape_jax.evaluation.progress import Progress
from dape_jax.evaluation.protocols import Segment
from dape_jax.evaluation.regions import Region, choose_regions

# The segments of each document.
Documents = list[list[Segment]]


@dataclasses.dataclass(frozen=True)
class Plan:
  """Regions of a split and the protocol that scores them.

  Attributes:
    split: of a `data.Corpus`: `.tokens` and `.starts`.
    protocol: a name in `protocols.PROTOCOLS`.
    stride: for protocol "sliding"; None means its default.
    lengths: context lengths, increasing.
    edges: of the position buckets of protocol "positionwise", else None.
    regions: of the longest length, by document and start.
  """

  split: Any
  protocol: str
  stride: int | None
  lengths: tuple[int, ...]
  edges: tuple[int, ...] | None
  regions: tuple[Region, ...]

  @functools.cached_property
  def documents(self) -> list[int]:
    """Indices of the scored documents, increasing."""
    return sorted({region.document for region in self.regions})

  def stride_at(self, length: int) -> int | None:
    """Returns the stride of protocol "sliding", None for others."""
    if self.protocol != "sliding":
      return None
    return self.stride or protocols.quarter(length)

  def segments(self, length: int) -> Documents:
    """Returns the segments of each document, in the order of its targets."""
    segments_of = protocols.protocol(self.protocol, self.stride)
    return [
        [
            segment
            for region in regions
            for segment in segments_of(region, length)
        ]
        for _, regions in itertools.groupby(self.regions, lambda r: r.document)
    ]

  def crops(self, length: int, train_length: int) -> Documents:
    """Returns segments with the same targets and a cropped context."""
    return [
        [w for s in segments for w in protocols.crop(s, train_length)]
        for segments in self.segments(length)
    ]

  @functools.cached_property
  def targets(self) -> list[np.ndarray]:
    """The scored tokens of each document, the same at every length."""
    return [
        np.concatenate(
            [
                segment_tokens(
                    self.split, s, s.length - s.scored + 1, s.length + 1
                )
                for s in segments
            ]
        )
        for segments in self.segments(self.lengths[-1])
    ]


def make_plan(
    split: Any,
    *,
    lengths: Sequence[int],
    protocol: str,
    max_regions: int,
    stride: int | None = None,
) -> Plan:
  """Chooses regions and checks the protocol.

  Args:
    split: see `Plan`.
    lengths: context lengths, increasing. Protocol "positionwise" scores only
      the longest; the others become bucket edges.
    protocol: see `Plan`.
    max_regions: maximum number of regions of the longest length.
    stride: see `Plan`.

  Raises:
    ConfigError: unknown protocol, a stride that does not fit, or no document is
      long enough.
  """
  segments_of = protocols.protocol(protocol, stride)
  regions = choose_regions(np.diff(split.starts), lengths[-1], max_regions)
  segments_of(regions[0], lengths[0])  # The shortest may be below the stride.
  edges = None
  if protocol == "positionwise":
    edges = tuple(protocols.position_edges(lengths))
    lengths = lengths[-1:]
  return Plan(split, protocol, stride, tuple(lengths), edges, tuple(regions))


def score_lengths(
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
  """Yields the nats at each length as soon as they are computed.

  Args:
    model: see `make_segment_scores`; `model.at_length(length)` returns the
      model for texts of up to that many tokens.
    params: its parameters.
    plan: what to score.
    lengths: the lengths of the plan to evaluate.
    train_length: context length of the crop baseline, see `protocols.crop`.
    batch_size: chooses the number of segments per batch.
    chunk: tokens per step.
    step_of: `make_step`, possibly cached across calls.
    label: name of the run in progress messages.

  Yields:
    A length and a JSON-serializable dict: document_nats and crop_document_nats
    (one per document), non_finite_tokens and crop_non_finite_tokens, positions
    (see `_positions`; None for other protocols) and seconds (excluding the crop
    baseline; a segment shared by several lengths counts for the first).
  """
  params = jax.device_put(params, jax.local_devices()[0])
  full = {length: plan.segments(length) for length in lengths}
  cropped = {length: plan.crops(length, train_length) for length in lengths}
  # Lengths share segments, mostly crops, so each is scored once. Some encodings
  # depend on the text length, so results are stored per model.
  known: dict[Any, dict[Segment, np.ndarray]] = {}

  def model_for(segments: Iterable[Segment]) -> Any:
    return model.at_length(max(s.length for s in segments))

  distinct: dict[Any, set[Segment]] = collections.defaultdict(set)
  for documents in (*full.values(), *cropped.values()):
    segments = set(itertools.chain.from_iterable(documents))
    distinct[model_for(segments)] |= segments
  num_inputs = sum(s.length for s in itertools.chain(*distinct.values()))
  progress = Progress(num_inputs, label)

  def score(documents: Documents, what: str) -> list[np.ndarray]:
    segments = set(itertools.chain.from_iterable(documents))
    at_length = model_for(segments)
    nats = known.setdefault(at_length, {})
    if new := segments - nats.keys():
      step = step_of(at_length)
      longest = max(s.length for s in new)
      rows = batch_size(step, at_length, params, longest, len(new))
      progress.line(f"{what}: {len(new)} texts, {rows} at a time")
      nats |= score_segments(
          functools.partial(
              make_segment_scores(at_length, step), on_tokens=progress.advance
          ),
          params,
          plan.split,
          new,
          batch_size=rows,
          chunk=chunk,
      )
    return [np.concatenate([nats[s] for s in d]) for d in documents]

  # A batch that fits at the longest length fits at the others too.
  longest = max(lengths)
  at_length = model_for(itertools.chain.from_iterable(full[longest]))
  num_texts = sum(map(len, full[longest]))
  batch_size(step_of(at_length), at_length, params, longest, num_texts)
  num_tokens = sum(map(len, plan.targets))
  for length in lengths:
    began = time.monotonic()
    nats = score(full[length], f"length {length}")
    seconds = time.monotonic() - began
    crop_nats = score(cropped[length], f"length {length}, crop")
    scores = {
        "positions": plan.edges and _positions(plan.edges, nats, crop_nats),
        "seconds": seconds,
    }
    for prefix, of_documents in (("", nats), ("crop_", crop_nats)):
      scores[f"{prefix}document_nats"] = [
          float(n.sum(dtype=np.float64)) for n in of_documents
      ]
      scores[f"{prefix}non_finite_tokens"] = int(
          sum((~np.isfinite(n)).sum() for n in of_documents)
      )
    shown, crop = (
        f"{perplexity(sum(scores[name]), num_tokens):.4g}"
        for name in ("document_nats", "crop_document_nats")
    )
    progress.line(
        f"length {length}: perplexity {shown}, crop {crop}, {seconds:.1f} s"
    )
    yield length, scores
  progress.close()


def _positions(
    edges: Sequence[int],
    nats: list[np.ndarray],
    crop_nats: list[np.ndarray],
) -> list[dict[str, Any]]:
  """Returns the loss in each bucket of positions within the regions.

  Args:
    edges: start of each bucket, then the end of the last.
    nats, crop_nats: one array per document, regions concatenated.
  """
  by_position, crop = (
      np.concatenate(n).reshape(-1, edges[-1]).astype(np.float64)
      for n in (nats, crop_nats)
  )
  entries = []
  for begin, end in itertools.pairwise(edges):
    tokens = len(by_position) * (end - begin)
    total, crop_total = (
        float(n[:, begin:end].sum()) for n in (by_position, crop)
    )
    entries.append(
        {
            "begin": begin,
            "end": end,
            "tokens": tokens,
            "nats": total,
            "loss": total / tokens,
            "crop_nats": crop_total,
            "crop_loss": crop_total / tokens,
        }
    )
  return entries
