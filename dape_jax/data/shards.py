"""Shards: array_record files of token blocks, written and read.

Each record is a `tf.train.Example` as tensorflow-datasets writes it, with the
features `tokens` and `document_starts`, so a folder of shards is also a
tensorflow-datasets dataset. TensorFlow is not needed.
"""

import hashlib
import itertools
import os
import pathlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dape_jax.errors import ConfigError

# Tokens per record. Reads decompress whole records; below this size, looking up
# a record takes longer than decompressing it.
BLOCK_SIZE = 4096
# Tokens per shard: large enough that all shards of 1e11 tokens can be open at
# once, small enough to write again after an interruption.
SHARD_TOKENS = 1 << 28
DATASET = "tokens"  # name in tensorflow-datasets

# Groups of one: a record is read without its neighbors.
_WRITER_OPTIONS = "group_size:1,zstd:1"
_MAX_OPEN = 512  # half of the default limit on open files
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"


def block_features(dtype: np.dtype) -> Any:
  """Returns the features of a record, a `tfds.features.FeaturesDict`."""
  import tensorflow_datasets as tfds  # takes half a second

  def array(dtype):
    # The default encoding is 5 to 9 times slower to read.
    encoding = tfds.features.Encoding.BYTES
    return tfds.features.Tensor(shape=(None,), dtype=dtype, encoding=encoding)

  return tfds.features.FeaturesDict(
      {"tokens": array(dtype), "document_starts": array(np.dtype(np.int32))}
  )


def _set_bytes(example: Any, name: str, values: np.ndarray) -> None:
  example.features.feature[name].bytes_list.value.append(values.tobytes())


def write_shard(
    file: pathlib.Path, blocks: Iterable[np.ndarray], starts: np.ndarray
) -> str:
  """Writes a shard atomically; equal tokens give equal bytes.

  Args:
    file: output file.
    blocks: little-endian tokens, BLOCK_SIZE each except the last.
    starts: int64, increasing token indices at which documents begin.

  Returns:
    The sha256 of tokens and starts, which unlike the file's does not depend on
    the version of array_record.

  Raises:
    OSError: the file cannot be written.
  """
  from array_record.python import array_record_module
  from tensorflow_datasets.proto import tf_example_pb2

  temporary = file.with_name(f"{file.name}.tmp")
  temporary.unlink(missing_ok=True)
  content = hashlib.sha256()
  try:
    writer = array_record_module.ArrayRecordWriter(
        os.fspath(temporary), _WRITER_OPTIONS
    )
    for number, block in enumerate(blocks):
      begin = number * BLOCK_SIZE
      first, last = np.searchsorted(starts, [begin, begin + len(block)])
      example = tf_example_pb2.Example()
      _set_bytes(example, "tokens", block)
      block_starts = (starts[first:last] - begin).astype("<i4")
      _set_bytes(example, "document_starts", block_starts)
      writer.write(example.SerializeToString(deterministic=True))
      content.update(block.tobytes() + block_starts.tobytes())
    writer.close()
    with temporary.open("rb") as stream:
      os.fsync(stream.fileno())
  except RuntimeError as error:
    raise OSError(f"{temporary}: {error}") from error
  temporary.rename(file)
  return content.hexdigest()


def write_metadata(
    folder: pathlib.Path, splits: Mapping[str, Any], dtype: np.dtype
) -> list[str]:
  """Writes the metadata that makes the folder a tensorflow-datasets dataset.

  Args:
    folder: contains the shards.
    splits: those of the manifest.
    dtype: token dtype.

  Returns:
    The names of the files written.
  """
  import tensorflow_datasets as tfds

  template = tfds.core.ShardedFileTemplate(
      data_dir=folder,
      template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}",
      dataset_name=DATASET,
      filetype_suffix="array_record",
  )
  tfds.folder_dataset.write_metadata(
      data_dir=folder,
      features=block_features(dtype),
      split_infos=[
          tfds.core.SplitInfo(
              name=name,
              shard_lengths=[
                  -(-shard["tokens"] // BLOCK_SIZE) for shard in split["shards"]
              ],
              num_bytes=sum(shard["bytes"] for shard in split["shards"]),
              filename_template=template.replace(split=name),
          )
          for name, split in splits.items()
      ],
      filename_template=template,
      version="1.0.0",
      check_data=False,  # would need TensorFlow
      disable_shuffling=True,
  )
  return ["dataset_info.json", "features.json"]


class TokenStream:
  """The tokens of a split, read from shards on demand.

  Thread-safe. Uses 8 bytes of memory per 4096 tokens of the open shards, at
  most 512 of them.

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
    """Initializes; opens no files.

    Args:
      files: the shards, in order.
      size: total number of tokens.
      dtype: token dtype.
      shard_tokens: size of every shard except the last, a multiple of
        BLOCK_SIZE.
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
      raise ValueError(f"tokens support [begin:end] only, not step {step}.")
    return self.rows([begin], max(end - begin, 0))[0]

  def rows(self, begins: Sequence[int], length: int) -> np.ndarray:
    """Returns tokens [begin, begin + length) for each begin.

    Args:
      begins: token indices.
      length: row length; rows must end within the stream.

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
    """Returns blocks by number."""
    blocks = {}
    for shard, numbers in itertools.groupby(
        wanted, lambda block: block // self._blocks
    ):
      numbers = list(numbers)
      first = shard * self._blocks
      try:
        # Reads in several threads, without the GIL.
        records = self._reader(shard).read([n - first for n in numbers])
        for number, record in zip(numbers, records, strict=True):
          blocks[number] = self._decoded(number, record)
      # The data may be arbitrary; array_record has no common exception type.
      except Exception as error:
        file = self._files[shard]
        problem = str(error).strip() or type(error).__name__
        raise ConfigError(
            f"{file} is damaged or missing ({problem}): restore it from a copy, or"
            " delete the folder and prepare it again; check all files with"
            " python -m dape_jax.data.prepare --verify"
            f" --output={file.parent}."
        ) from error
    return blocks

  def _decoded(self, number: int, record: bytes) -> np.ndarray:
    from tensorflow_datasets.proto import tf_example_pb2

    features = tf_example_pb2.Example.FromString(record).features.feature
    (values,) = features["tokens"].bytes_list.value
    tokens = np.frombuffer(values, self.dtype)
    expected = min(BLOCK_SIZE, self.size - number * BLOCK_SIZE)
    if len(tokens) != expected:
      raise ValueError(f"block has {len(tokens)} tokens, not {expected}")
    return tokens

  def _reader(self, shard: int) -> Any:
    from array_record.python import array_record_module

    with self._lock:
      if shard not in self._readers:
        # array_record treats a missing file as an empty one.
        self._files[shard].stat()
        self._readers[shard] = array_record_module.ArrayRecordReader(
            os.fspath(self._files[shard]), _READER_OPTIONS
        )
        if len(self._readers) > _MAX_OPEN:
          # Closed once the last thread has finished reading from it.
          self._readers.popitem(last=False)
      self._readers.move_to_end(shard)
      return self._readers[shard]
