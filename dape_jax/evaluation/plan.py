"""What an evaluation reads: the same tokens at every length, for every run."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from dape_jax.evaluation import protocols
from dape_jax.evaluation.perplexity import segment_tokens
from dape_jax.evaluation.protocols import Segment
from dape_jax.evaluation.regions import Region, choose_regions

# Readings of each document.
Readings = list[list[Segment]]


@dataclasses.dataclass(frozen=True)
class Plan:
  """Regions of a split, and how they are read.

  Attributes:
    split: of a `data.Corpus`: `.tokens` and `.starts`.
    protocol: a name in `protocols.PROTOCOLS`.
    stride: of protocol "sliding"; None is its default, and of other protocols.
    lengths: inputs per reading, increasing.
    edges: of buckets of positions for protocol "positionwise", else None.
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
    """Indices of the documents that are read, increasing."""
    return sorted({region.document for region in self.regions})

  def stride_at(self, length: int) -> int | None:
    """Returns the stride of protocol "sliding", None for others."""
    if self.protocol != "sliding":
      return None
    return self.stride or protocols.quarter(length)

  def readings(self, length: int) -> Readings:
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

  def crops(self, length: int, train_length: int) -> Readings:
    """Returns readings of the same targets with the context cut."""
    return [
        [w for s in segments for w in protocols.crop(s, train_length)]
        for segments in self.readings(length)
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
        for segments in self.readings(self.lengths[-1])
    ]


def make_plan(
    split: Any,
    *,
    lengths: Sequence[int],
    protocol: str,
    max_regions: int,
    stride: int | None = None,
) -> Plan:
  """Returns what is read of a split.

  Args:
    split: see `Plan`.
    lengths: inputs per reading, increasing. Protocol "positionwise" reads the
      longest; the others are edges of its buckets.
    protocol: see `Plan`.
    max_regions: at most so many regions of the longest length are read.
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
