"""Reading tokens from shards."""

import itertools
import os
import pathlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from dape_jax.data.shards import BLOCK_SIZE
from dape_jax.errors import ConfigError

_MAX_OPEN = 512  # half of the files that a process may have open by default
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"


class TokenStream:
  """The tokens of a split: slices of them, read from shards when asked for.

  Any number of threads may read. Memory is an index of 8 bytes for each 4096
  tokens of the shards in use, at most 512 of them.

  Attributes:
    size: number of tokens.
    dtype: uint16 or uint32.
  """

  def __init__(
      self,
      files: Sequence[pathlib.Path],
      size: int,
      dtype: np.dtype,
      shard_tokens: int,
  ):
    """Opens no file yet.

    Args:
      files: the shards, in order.
      size: tokens of all of them.
      dtype: of the tokens.
      shard_tokens: of each but the last; a multiple of BLOCK_SIZE.
    """
    self.size = size
    self.dtype = dtype
    self._files = tuple(files)
    self._blocks = shard_tokens // BLOCK_SIZE
    self._readers: OrderedDict[int, Any] = OrderedDict()
    self._lock = threading.Lock()

  def __len__(self) -> int:
    return self.size

  def __getitem__(self, item: slice) -> np.ndarray:
    """Returns tokens [begin:end].

    Raises:
      ConfigError: a shard is damaged or missing.
    """
    begin, end, step = item.indices(self.size)
    if step != 1:
      raise ValueError(f"tokens are read as [begin:end], not by {step}.")
    return self.rows([begin], max(end - begin, 0))[0]

  def rows(self, begins: Sequence[int], length: int) -> np.ndarray:
    """Returns tokens [begin, begin + length) of each begin, read together.

    Args:
      begins: indices of tokens.
      length: of each row, which ends before the stream does.

    Returns:
      [rows, length], `dtype`.

    Raises:
      ConfigError: a shard is damaged or missing.
    """
    out = np.empty((len(begins), length), self.dtype)
    spans = [
        range(begin // BLOCK_SIZE, (begin + length - 1) // BLOCK_SIZE + 1)
        for begin in begins
    ]
    blocks = self._read(sorted(set().union(*spans)) if length else [])
    for row, begin, span in zip(out, begins, spans, strict=True):
      at = 0
      for block in span if length else ():
        offset = max(0, begin - block * BLOCK_SIZE)
        tokens = blocks[block][offset : offset + length - at]
        row[at : at + len(tokens)] = tokens
        at += len(tokens)
    return out

  def _read(self, wanted: Sequence[int]) -> dict[int, np.ndarray]:
    """Returns blocks by their number."""
    blocks = {}
    for shard, numbers in itertools.groupby(
        wanted, lambda block: block // self._blocks
    ):
      numbers = list(numbers)
      first = shard * self._blocks
      try:
        # In several threads, and without Python's lock.
        records = self._reader(shard).read([n - first for n in numbers])
        for number, record in zip(numbers, records, strict=True):
          blocks[number] = self._decoded(number, record)
      # What is read may be anything, and array_record raises what it likes.
      except Exception as error:
        file = self._files[shard]
        problem = str(error).strip() or type(error).__name__
        raise ConfigError(
            f"{file} is damaged or missing ({problem}): put it back from a copy,"
            " or delete the folder and prepare it again; python -m"
            f" dape_jax.data.prepare --verify --output={file.parent} checks all"
            " files."
        ) from error
    return blocks

  def _decoded(self, number: int, record: bytes) -> np.ndarray:
    from tensorflow_datasets.proto import tf_example_pb2

    features = tf_example_pb2.Example.FromString(record).features.feature
    (values,) = features["tokens"].bytes_list.value
    tokens = np.frombuffer(values, self.dtype)
    expected = min(BLOCK_SIZE, self.size - number * BLOCK_SIZE)
    if len(tokens) != expected:
      raise ValueError(f"a block of {len(tokens)} tokens, not {expected}")
    return tokens

  def _reader(self, shard: int) -> Any:
    from array_record.python import array_record_module

    with self._lock:
      if shard not in self._readers:
        # array_record takes a missing file for an empty one.
        self._files[shard].stat()
        self._readers[shard] = array_record_module.ArrayRecordReader(
            os.fspath(self._files[shard]), _READER_OPTIONS
        )
        if len(self._readers) > _MAX_OPEN:
          # Closed when the last thread that reads with it is done.
          self._readers.popitem(last=False)
      self._readers.move_to_end(shard)
      return self._readers[shard]
