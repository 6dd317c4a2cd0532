"""Evaluation protocols: which tokens are scored, with how much context.

All lengths score the *same* tokens, so that results differ by context only. A
protocol splits a region of the longest length into segments for each length.

A protocol is a function `(region, length) -> list of Segment`. Its segments
score every token of the protocol's block exactly once.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dape_jax.errors import ConfigError, did_you_mean
from dape_jax.evaluation.regions import Region

# Predictions that `last256` scores at the end of a region.
_BLOCK = 256


class Segment(NamedTuple):
  """One forward pass: inputs at positions 0..length-1, without BOS.

  Prediction i is for the document's token start + i + 1.

  Attributes:
    document: index of the document in its split.
    start: offset of the first input from the document's first token.
    length: number of inputs.
    scored: number of final predictions that count.
  """

  document: int
  start: int
  length: int
  scored: int


Protocol = Callable[[Region, int], list[Segment]]


def last256(region: Region, length: int) -> list[Segment]:
  """Scores the last 256 targets of a region (DAPE, arXiv 2405.14722).

  The block of the last min(256, region.length) targets is tiled from its end
  into sub-blocks of min(256, length) targets, each scored with the `length`
  inputs that end there. Departure from the paper, which scores min(256,
  length) targets: here all lengths score the same block, short lengths in
  several segments. The earliest sub-block may be smaller; it keeps `length`
  inputs of context, or all inputs that the document has before it.

  Args:
    region: what to score.
    length: inputs per segment, at most region.length.

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

  The region is cut from its start into non-overlapping segments of `length`
  inputs. Every prediction counts, including position 0 and the last, partial
  segment.

  Args:
    region: what to score.
    length: inputs per segment.

  Returns:
    Segments, first to last.
  """
  end = region.start + region.length
  segments = []
  for start in range(region.start, end, length):
    inputs = min(length, end - start)
    segments.append(Segment(region.document, start, inputs, inputs))
  return segments


def sliding(
    region: Region, length: int, stride: int | None = None
) -> list[Segment]:
  """Scores every target of a region, each with a nearly full context.

  Windows of `length` inputs move through the region by `stride`; the last ends
  with the region. The first scores all of its targets, later ones only the
  targets not yet scored: a target at offset i sees min(i + 1,
  between length - stride + 1 and length) tokens (Baevski and Auli 2018, arXiv
  1809.10853; Press et al. 2020, arXiv 2012.15832).

  Args:
    region: what to score.
    length: inputs per window.
    stride: at most `length`; default: `quarter(length)`.

  Returns:
    Segments, first to last.

  Raises:
    ConfigError: stride > length would skip targets between windows.
  """
  stride = quarter(length) if stride is None else stride
  if stride > length:
    raise ConfigError(
        f"--stride={stride}: windows of --lengths={length} would leave out"
        f" tokens between them; use at most {length}."
    )
  return _windows(Segment(*region, region.length), length, stride)


def position_edges(lengths: Sequence[int]) -> list[int]:
  """Returns the edges of the position buckets of protocol "positionwise".

  It scores each region in one pass and reports the loss per bucket of positions
  (KERPLE, arXiv 2205.09921, figures 5, 7). Buckets begin at 0, at powers of two
  and at the given lengths; the last ends at the longest length.
  """
  longest = max(lengths)
  powers = {1 << i for i in range(longest.bit_length())}
  return sorted({0, *powers, *lengths})


PROTOCOLS: dict[str, Protocol] = {
    "last256": last256,
    "all": all_positions,
    "sliding": sliding,
    "positionwise": all_positions,  # In one segment, see `position_edges`.
}


def protocol(name: str, stride: int | None = None) -> Protocol:
  """Returns the protocol called `name`.

  Args:
    name: in PROTOCOLS.
    stride: for "sliding"; None means its default.

  Raises:
    ConfigError: the name is unknown, or the protocol has no stride.
  """
  if name not in PROTOCOLS:
    raise ConfigError(
        f"--protocol={name!r} is unknown.{did_you_mean(name, PROTOCOLS)}"
    )
  if stride is None:
    return PROTOCOLS[name]
  if name != "sliding":
    raise ConfigError(
        f"--stride={stride}: --protocol={name} has none; leave it out, or use"
        " --protocol=sliding."
    )
  return functools.partial(sliding, stride=stride)


def quarter(length: int) -> int:
  """Returns the default stride of windows of `length` inputs."""
  return max(1, length // 4)


def crop(segment: Segment, train_length: int) -> list[Segment]:
  """Returns segments with the same targets and cropped context (baseline).

  Windows of `train_length` inputs move through the segment by a stride of
  `quarter(train_length)`. The first scores all of its targets that the segment
  scores, later ones the last `stride`: a target at offset i of the segment
  sees min(i + 1, between train_length - stride + 1 and train_length) tokens. A
  model that extrapolates beyond its training length must beat this (DroPE,
  arXiv 2512.12167).

  Args:
    segment: whose targets are scored.
    train_length: inputs per window.

  Returns:
    Segments, first to last; [segment] when it is not longer than a window.
  """
  return _windows(segment, train_length, quarter(train_length))


def _windows(segment: Segment, length: int, stride: int) -> list[Segment]:
  """Returns windows that score each target of the segment once."""
  if segment.length <= length:
    return [segment]
  windows = []
  done = segment.length - segment.scored
  for end in range(length, segment.length + stride, stride):
    end = min(end, segment.length)
    if end > done:
      start = segment.start + end - length
      windows.append(Segment(segment.document, start, length, end - done))
      done = end
  return windows
