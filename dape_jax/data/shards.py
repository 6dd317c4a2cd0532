"""Shards: array_record files of token blocks.

A record is a `tf.train.Example` as tensorflow-datasets writes it, with the
features `tokens` and `document_starts` (`block_features`), so that a folder of
shards is one of its datasets. Both are made without TensorFlow.
"""

import hashlib
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

# Tokens of a record. Every read decompresses whole ones; below this size
# looking a record up takes longer than that.
BLOCK_SIZE = 4096
# Tokens of a shard: few enough files that all of a corpus of 1e11 tokens can be
# open at once, and small enough to be written again after an interruption.
SHARD_TOKENS = 1 << 28
DATASET = "tokens"  # name in tensorflow-datasets

_WRITER_OPTIONS = (
    "group_size:1,zstd:1"  # a record is read without its neighbours
)


def block_features(dtype: np.dtype) -> Any:
  """Returns what a record holds, as a `tfds.features.FeaturesDict`.

  Args:
    dtype: of the tokens.
  """
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
  """Writes a shard, the same bytes for the same tokens.

  Args:
    file: whose name nothing has before the shard is complete.
    blocks: tokens, little-endian, BLOCK_SIZE each but for the last.
    starts: int64, indices of tokens where documents begin, increasing.

  Returns:
    The sha256 of tokens and starts, which unlike the file's does not depend on
    versions of array_record.

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
  """Makes a folder of shards a dataset of tensorflow-datasets.

  Args:
    folder: with the shards.
    splits: of the manifest.
    dtype: of the tokens.

  Returns:
    Names of the files that were written.
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
      check_data=False,  # with TensorFlow
      disable_shuffling=True,
  )
  return ["dataset_info.json", "features.json"]
