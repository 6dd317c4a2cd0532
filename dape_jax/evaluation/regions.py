"""Context lengths, and the regions of documents to evaluate.

Regions are chosen once, for the longest length, so that all lengths are
compared on the same tokens.
"""

import collections
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dape_jax.errors import ConfigError


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


def parse_lengths(text: str) -> list[int]:
  """Parses a list of lengths; "..." stands for doubling.

  Args:
    text: comma list, for example "128,256,...,16384" or "100,...,800".

  Raises:
    ConfigError: malformed, not positive, not increasing, or doubling misses
      the value after "...".
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
        raise wrong('"..." must be between two lengths')
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
    raise wrong('"..." must be between two lengths')
  return lengths


def choose_regions(
    document_lengths: Sequence[int], longest: int, max_regions: int
) -> list[Region]:
  """Returns non-overlapping regions of `longest` inputs, spread evenly.

  Regions are divided as evenly as possible among the documents that are long
  enough, and spaced evenly in each. If there are more such documents than
  `max_regions`, evenly spaced documents get one each. Deterministic.

  Args:
    document_lengths: [num_documents] tokens of each document.
    longest: inputs per region; it needs one more token, the last target.
    max_regions: maximum number of regions.

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
        f"--lengths: no document has {longest} tokens of context; the longest"
        f" has {available}: use lengths up to {available}."
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
