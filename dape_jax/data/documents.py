"""Corpora of documents in memory, prepared on first use.

A built-in corpus is the text of whatever package versions are installed, so a
hash of its contents, the fingerprint, identifies it rather than its name.
"""

import dataclasses
import hashlib
import itertools
import os
import pathlib
import shutil
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from absl import logging

from dape_jax.data import manifest as manifest_lib
from dape_jax.data.corpus import Corpus, open_folder
from dape_jax.data.manifest import SPLITS
from dape_jax.data.tokenizers import Tokenizer, make_tokenizer
from dape_jax.data.writer import CorpusWriter, Item
from dape_jax.errors import ConfigError

_BATCH = 256  # documents encoded at a time


@dataclasses.dataclass(frozen=True)
class Document:
  """One document of a corpus.

  Attributes:
    path: path relative to the package root, with "/"; unique in the corpus.
    group: documents of a group always share a split.
    split: "train", "validation" or "test".
    text: the raw bytes; need not be valid UTF-8.
  """

  path: str
  group: str
  split: str
  text: bytes


def ordered_unique(documents: Iterable[Document]) -> list[Document]:
  """Returns the documents by split and path, without exact duplicates.

  Keeps the first of equal texts in the order train, validation, test, so no
  training text appears in another split.

  Args:
    documents: in any order.

  Raises:
    ConfigError: an unknown split, a path used twice, or a split without text.
  """
  documents = sorted(documents, key=lambda d: d.path)
  for before, after in itertools.pairwise(documents):
    if before.path == after.path:
      raise ConfigError(
          f"Two documents have the path {after.path!r}; paths must be unique."
      )
  for document in documents:
    if document.split not in SPLITS:
      raise ConfigError(
          f"Document {document.path!r} has the split {document.split!r}; valid:"
          f" {', '.join(SPLITS)}."
      )
  documents.sort(key=lambda d: SPLITS.index(d.split))  # stable: by path within
  unique = {}
  for document in documents:
    unique.setdefault(document.text, document)
  unique.pop(b"", None)
  for split in SPLITS:
    if not any(document.split == split for document in unique.values()):
      raise ConfigError(
          f"The {split} split of the corpus has no documents; every split needs"
          " at least one."
      )
  return list(unique.values())


def open_corpus(
    documents: Iterable[Document],
    name: str,
    tokenizer: str = "bytes",
    data_dir: str | os.PathLike[str] = "",
) -> Corpus:
  """Returns the corpus of the given documents, preparing it on first use.

  Safe to call from several processes at once.

  Args:
    documents: in any order; exact duplicates are dropped.
    name: letters, digits and underscores; prefix of the folder's name.
    tokenizer: see `make_tokenizer`.
    data_dir: see `load_corpora`.

  Raises:
    ConfigError: see `load_corpora`.
  """
  made = make_tokenizer(tokenizer)
  data_dir = _data_dir(data_dir)
  documents = ordered_unique(documents)
  entries = [
      {
          "path": document.path,
          "group": document.group,
          "split": document.split,
          "sha256": hashlib.sha256(document.text).hexdigest(),
          "bytes": len(document.text),
      }
      for document in documents
  ]
  content = manifest_lib.digest_of(entries)
  fingerprint = manifest_lib.with_tokenizer(content, made.sha256)
  version = manifest_lib.VERSION
  folder = data_dir / f"{name}_{made.name}_{fingerprint}_v{version}"
  if not folder.exists():
    _prepare(documents, entries, content, made, folder)
  return open_folder(folder)


def _data_dir(data_dir: str | os.PathLike[str]) -> pathlib.Path:
  data_dir = os.fspath(data_dir) or os.environ.get("DAPE_JAX_DATA", "")
  if "://" in data_dir:
    raise ConfigError(
        f"config.data.dir={data_dir!r}: prepared data is memory-mapped and must"
        " be in a local folder."
    )
  return pathlib.Path(data_dir or "~/.cache/dape_jax").expanduser().absolute()


def _prepare(
    documents: Sequence[Document],
    entries: Sequence[dict[str, Any]],
    content: str,
    tokenizer: Tokenizer,
    folder: pathlib.Path,
) -> None:
  """Writes a corpus to a temporary folder and renames it into place.

  So `folder` is always complete. If another process finishes first, its result
  stays and this one is discarded.
  """
  begin = time.monotonic()
  num_bytes = sum(entry["bytes"] for entry in entries)
  logging.info(
      "Preparing %d documents (%.1f MB) in %s",
      len(entries),
      num_bytes / 1e6,
      folder,
  )
  temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
  try:
    temporary.mkdir(parents=True)
    writer = CorpusWriter(temporary, tokenizer)
    items = [
        Item(document.split, document.text, (number, 0))
        for number, document in enumerate(documents)
    ]
    for first in range(0, len(items), _BATCH):
      writer.add(items[first : first + _BATCH])
    writer.finish(
        [
            {"name": e["path"], "documents": 1, "skipped": 0, **e}
            for e in entries
        ],
        fingerprint=content,
    )
    try:
      temporary.rename(folder)
    except OSError:
      if not folder.is_dir():
        raise
  except OSError as error:
    # The documents are in memory by now, so this folder is the cause.
    raise ConfigError(
        f"config.data.dir: cannot write {folder} ({error.strerror or error});"
        " set it, or $DAPE_JAX_DATA, to a writable folder with free space."
    ) from error
  finally:
    shutil.rmtree(temporary, ignore_errors=True)
  logging.info("Prepared the corpus in %.1f s", time.monotonic() - begin)
