"""Which tokens are scored, and from which inputs: evaluation protocols.

Lengths are compared on the *same* tokens, so that they differ by context only:
regions of the longest length are chosen once, and each protocol says how a
region is read at a given length.

A protocol is a function `(region, length) -> list of Segment`. Within one
region its segments score every token of the protocol's block exactly once.
"""

import collections
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dape_jax.errors import ConfigError, did_you_mean

# Predictions that `last256` scores at the end of a region.
_BLOCK = 256


class Region(NamedTuple):
  """Tokens [start, start + length] of a document: `length` inputs, a target.

  Attributes:
    document: index of the document in its split.
    start: offset of the first input from the document's first token.
    length: number of inputs.
  """

  document: int
  start: int
  length: int


class Segment(NamedTuple):
  """One reading: inputs at positions 0..length-1, no BOS added.

  Prediction i is of the document's token start + i + 1.

  Attributes:
    document: index of the document in its split.
    start: offset of the first input from the document's first token.
    length: number of inputs.
    scored: how many of the last predictions count.
  """

  document: int
  start: int
  length: int
  scored: int


def parse_lengths(text: str) -> list[int]:
  """Returns the lengths that `text` lists; "..." stands for doubling.

  Args:
    text: comma list, for example "128,256,...,16384" or "100,...,800".

  Raises:
    ConfigError: malformed, not positive, not increasing, or doubling misses
      the value behind "...".
  """

  def wrong(reason: str) -> ConfigError:
    return ConfigError(
        f'--lengths="{text}": {reason}; write for example 128,256,...,4096.'
    )

  lengths: list[int] = []
  doubling = False
  for item in (item.strip() for item in text.split(",")):
    if item == "...":
      if not lengths or doubling:
        raise wrong('"..." stands between two lengths')
      doubling = True
      continue
    try:
      length = int(item)
    except ValueError:
      raise wrong(f'"{item}" is not a whole number') from None
    if length <= 0:
      raise wrong(f"{length} is not greater than 0")
    if lengths and length <= lengths[-1]:
      raise wrong(f"{length} after {lengths[-1]} does not increase")
    if doubling:
      before = lengths[-1]
      while 2 * lengths[-1] < length:
        lengths.append(2 * lengths[-1])
      if 2 * lengths[-1] != length:
        raise wrong(f"doubling {before} does not reach {length}")
      doubling = False
    lengths.append(length)
  if doubling:
    raise wrong('"..." stands between two lengths')
  return lengths


def choose_regions(
    document_lengths: Sequence[int], longest: int, max_regions: int
) -> list[Region]:
  """Returns non-overlapping regions of `longest` inputs, spread evenly.

  Every long enough document gives as equal a number of regions as its length
  allows, evenly spaced in it; with more such documents than `max_regions`,
  evenly spaced documents give one each. Deterministic.

  Args:
    document_lengths: [num_documents] tokens of each document.
    longest: inputs of a region; it needs one more token, the last target.
    max_regions: at most so many are returned.

  Returns:
    Regions ordered by document and start.

  Raises:
    ConfigError: no document is long enough, or max_regions is not positive.
  """
  if max_regions <= 0:
    raise ConfigError(f"--regions={max_regions}: must be greater than 0.")
  capacities = (np.asarray(document_lengths, np.int64) - 1) // longest
  eligible = np.flatnonzero(capacities > 0)
  if not eligible.size:
    available = int(max(document_lengths, default=1)) - 1
    raise ConfigError(
        f"--lengths: no document can be read for {longest} tokens; the longest"
        f" allows {available}: use lengths up to {available}."
    )
  eligible = eligible[_spread(len(eligible), min(max_regions, len(eligible)))]
  quotas: collections.Counter[int] = collections.Counter()
  remaining = min(max_regions, int(capacities[eligible].sum()))
  while remaining:
    open_documents = [d for d in eligible if quotas[d] < capacities[d]]
    for document in open_documents[:remaining]:
      quotas[document] += 1
    remaining -= min(remaining, len(open_documents))
  return [
      Region(int(document), int(index) * longest, longest)
      for document in eligible
      for index in _spread(int(capacities[document]), quotas[document])
  ]


def _spread(count: int, picks: int) -> np.ndarray:
  """Returns `picks` distinct indices, evenly spaced in range(count)."""
  return (2 * np.arange(picks) + 1) * count // (2 * max(picks, 1))


def last256(region: Region, length: int) -> list[Segment]:
  """Scores the last 256 targets of a region (DAPE, arXiv 2405.14722).

  The block of the last min(256, region.length) targets is tiled from its end
  into sub-blocks of min(256, length) targets, each read from the `length`
  inputs that end there. Departure from the paper, which scores min(256,
  length) targets: here all lengths score the same block, for a short length
  in several readings. The earliest sub-block may be smaller; it keeps `length`
  inputs of context, or as many as the document has before it.

  Args:
    region: what to read.
    length: inputs per reading, at most region.length.

  Returns:
    Segments, first to last.
  """
  segments = []
  end = region.start + region.length
  block_start = end - min(_BLOCK, region.length)
  while end > block_start:
    start = max(0, end - length)
    scored = min(_BLOCK, length, end - block_start)
    segments.append(Segment(region.document, start, end - start, scored))
    end -= scored
  return segments[::-1]


def all_positions(region: Region, length: int) -> list[Segment]:
  """Scores every target of a region (KERPLE, arXiv 2205.09921).

  The region is cut from its start into non-overlapping readings of `length`
  inputs; every prediction counts, position 0 and the last, partial reading
  included.

  Args:
    region: what to read.
    length: inputs per reading.

  Returns:
    Segments, first to last.
  """
  end = region.start + region.length
  segments = []
  for start in range(region.start, end, length):
    inputs = min(length, end - start)
    segments.append(Segment(region.document, start, inputs, inputs))
  return segments


PROTOCOLS: dict[str, Callable[[Region, int], list[Segment]]] = {
    "last256": last256,
    "all": all_positions,
}


def protocol(name: str) -> Callable[[Region, int], list[Segment]]:
  """Returns the protocol called `name`.

  Raises:
    ConfigError: there is none; the message names the valid ones.
  """
  if name not in PROTOCOLS:
    raise ConfigError(
        f"--protocol={name!r} is unknown.{did_you_mean(name, PROTOCOLS)}"
    )
  return PROTOCOLS[name]


def crop(segment: Segment, train_length: int) -> list[Segment]:
  """Returns readings of the same targets with the context cut (baseline).

  Windows of `train_length` inputs move through the segment by a stride of
  max(1, train_length // 4). The first scores all of its targets that the
  segment scores, later ones their last `stride`: a target at offset i of the
  segment sees min(i + 1, between train_length - stride + 1 and train_length)
  tokens. A model that reads beyond its training length must beat this.

  Args:
    segment: the reading to imitate.
    train_length: inputs per window.

  Returns:
    Segments, first to last; [segment] when it is not longer than a window.
  """
  if segment.length <= train_length:
    return [segment]
  stride = max(1, train_length // 4)
  windows = []
  done = segment.length - segment.scored
  for end in range(train_length, segment.length + stride, stride):
    end = min(end, segment.length)
    if end > done:
      start = segment.start + end - train_length
      windows.append(Segment(segment.document, start, train_length, end - done))
      done = end
  return windows
