"""tensorflow-datasets builders of a corpus, without TensorFlow.

Two datasets, both array_record and both in corpus order: the documents, and
the stream of tokens cut into blocks. Importing this module registers their
names with tensorflow-datasets, hence the prefix.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from dape_jax.data.documents import SPLITS, Document
from dape_jax.data.tokenizers import ByteTokenizer

BLOCK_SIZE = 1 << 16  # tokens; large enough to read at memory speed


def token_blocks(
    texts: Iterable[bytes], tokenizer: ByteTokenizer
) -> Iterator[dict[str, np.ndarray]]:
  """Yields the token stream of `texts`, each followed by one EOS, in blocks.

  Args:
    texts: documents.
    tokenizer: turns one into ids.

  Yields:
    tokens: uint16 [BLOCK_SIZE], shorter in the last block;
    document_starts: int32, indices in this block where documents begin.
  """
  tokens = np.zeros(0, np.uint16)
  starts = np.zeros(0, np.int32)
  for text in texts:
    starts = np.append(starts, np.int32(tokens.size))
    eos = np.array([tokenizer.eos], np.uint16)
    tokens = np.concatenate([tokens, tokenizer.encode(text), eos])
    while tokens.size >= BLOCK_SIZE:
      here = starts < BLOCK_SIZE
      yield {"tokens": tokens[:BLOCK_SIZE], "document_starts": starts[here]}
      tokens, starts = tokens[BLOCK_SIZE:], starts[~here] - BLOCK_SIZE
  if tokens.size:
    yield {"tokens": tokens, "document_starts": starts}


class DapeJaxDocuments(tfds.core.GeneratorBasedBuilder):
  """Dataset of documents: path, group and text (raw bytes)."""

  VERSION = tfds.core.Version("1.0.0")

  def __init__(self, *, documents: Sequence[Document], **kwargs: Any):
    # Not in the BuilderConfig, which is logged whole.
    self._documents = documents
    super().__init__(**kwargs)

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
        builder=self,
        features=tfds.features.FeaturesDict(
            {
                "path": tfds.features.Text(),
                "group": tfds.features.Text(),
                "text": tfds.features.Text(),
            }
        ),
        disable_shuffling=True,
    )

  def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
    return {split: self._generate_examples(split) for split in SPLITS}

  def _generate_examples(self, split: str) -> Iterator[tuple[int, dict]]:
    documents = (d for d in self._documents if d.split == split)
    for key, document in enumerate(documents):
      yield key, {
          "path": document.path,
          "group": document.group,
          "text": document.text,
      }


class DapeJaxTokenBlocks(tfds.core.GeneratorBasedBuilder):
  """Dataset of token blocks: tokens and document_starts (`token_blocks`)."""

  VERSION = tfds.core.Version("1.0.0")

  def __init__(
      self,
      *,
      documents: DapeJaxDocuments,
      tokenizer: ByteTokenizer,
      **kwargs: Any,
  ):
    self._documents = documents
    self._tokenizer = tokenizer
    super().__init__(**kwargs)

  def _info(self) -> tfds.core.DatasetInfo:
    # The default encoding is 5 to 9 times slower to read.
    encoding = tfds.features.Encoding.BYTES
    return tfds.core.DatasetInfo(
        builder=self,
        features=tfds.features.FeaturesDict(
            {
                "tokens": tfds.features.Tensor(
                    shape=(None,), dtype=np.uint16, encoding=encoding
                ),
                "document_starts": tfds.features.Tensor(
                    shape=(None,), dtype=np.int32, encoding=encoding
                ),
            }
        ),
        disable_shuffling=True,
    )

  def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
    return {split: self._generate_examples(split) for split in SPLITS}

  def _generate_examples(self, split: str) -> Iterator[tuple[int, dict]]:
    source = self._documents.as_data_source(split)
    texts = (source[i]["text"] for i in range(len(source)))
    yield from enumerate(token_blocks(texts, self._tokenizer))


def prepare_datasets(
    documents: Sequence[Document],
    tokenizer: ByteTokenizer,
    name: str,
    data_dir: str | os.PathLike[str],
) -> DapeJaxTokenBlocks:
  """Writes both datasets below `data_dir` and returns the one of blocks.

  Args:
    documents: the corpus, in order.
    tokenizer: turns documents into tokens.
    name: config name; must hold the fingerprint, because tensorflow-datasets
      reuses an existing config of the same name without looking at the data.
    data_dir: folder that no other process writes to.
  """
  settings = dict(
      config=tfds.core.BuilderConfig(name=name),
      data_dir=data_dir,
      file_format="array_record",
  )
  download = dict(
      download_config=tfds.download.DownloadConfig(try_download_gcs=False)
  )
  document_builder = DapeJaxDocuments(documents=documents, **settings)
  document_builder.download_and_prepare(**download)
  block_builder = DapeJaxTokenBlocks(
      documents=document_builder, tokenizer=tokenizer, **settings
  )
  block_builder.download_and_prepare(**download)
  return block_builder
