"""Documents, and the manifest that identifies a corpus.

The text of a corpus is whatever versions of the packages are installed, so its
identity is not its name but the hash of what it contains: the fingerprint.
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

from dape_jax.errors import ConfigError

SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Document:
  """One document of a corpus.

  Attributes:
    path: path relative to the package root, with "/"; unique in the corpus.
    group: documents of a group are never divided over splits.
    split: "train", "validation" or "test".
    text: the raw bytes; need not be valid UTF-8.
  """

  path: str
  group: str
  split: str
  text: bytes


def ordered_unique(documents: Iterable[Document]) -> list[Document]:
  """Returns the documents by split and path, exact duplicates dropped.

  Of documents with equal text the first in the order train, validation, test
  is kept, so that no text of the training split is in another one.

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
          f"The corpus has no document in its {split} split; every split needs"
          " one."
      )
  return list(unique.values())


def make_manifest(documents: Sequence[Document]) -> list[dict[str, Any]]:
  """Returns path, group, split, sha256 and bytes of each document, in order."""
  return [
      {
          "path": document.path,
          "group": document.group,
          "split": document.split,
          "sha256": hashlib.sha256(document.text).hexdigest(),
          "bytes": len(document.text),
      }
      for document in documents
  ]


def fingerprint(manifest: Sequence[dict[str, Any]]) -> str:
  """Returns 16 hex digits that change with any document, path or split."""
  canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
  return hashlib.sha256(canonical.encode()).hexdigest()[:16]
