"""A corpus on disk: prepared once, then opened as memory maps."""

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from dape_jax.data import documents as documents_lib
from dape_jax.data import preparation
from dape_jax.data.documents import SPLITS, Document
from dape_jax.data.sources import SOURCES
from dape_jax.data.tokenizers import ByteTokenizer, make_tokenizer
from dape_jax.errors import ConfigError, did_you_mean


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
  """One split as a flat stream: each document's tokens, then one EOS.

  Attributes:
    split_name: "train", "validation" or "test".
    fingerprint: of the whole corpus.
    tokens: read-only memory map, uint16 [num_tokens].
    starts: int64 [num_documents + 1], index of each document's first token;
      the last is num_tokens.
    paths: of the documents, in order.
  """

  split_name: str
  fingerprint: str
  tokens: np.ndarray
  starts: np.ndarray
  paths: tuple[str, ...]

  @property
  def num_documents(self) -> int:
    return len(self.paths)

  def name(self, index: int) -> str:
    """Returns the path of document `index` relative to its package root."""
    return self.paths[index]


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
  """A prepared corpus.

  Attributes:
    fingerprint: 16 hex digits that identify the text and its splits. Results
      compare only at equal fingerprints.
    tokenizer: that made the tokens.
    folder: where it lies: `{split}.tokens.npy`, `{split}.starts.npy`,
      manifest.json, and the tensorflow-datasets form below `tfds`.
    splits: names of the splits.
  """

  fingerprint: str
  tokenizer: ByteTokenizer
  folder: pathlib.Path
  splits: tuple[str, ...] = SPLITS

  @functools.cached_property
  def manifest(self) -> list[dict[str, Any]]:
    """Path, group, split, sha256 and bytes of every document, in order."""
    return json.loads((self.folder / "manifest.json").read_text("utf-8"))

  def split(self, name: str) -> Split:
    """Opens a split.

    Raises:
      ConfigError: there is none called `name`.
    """
    if name not in self.splits:
      raise ConfigError(
          f"The corpus has no split {name!r}.{did_you_mean(name, self.splits)}"
      )
    return Split(
        split_name=name,
        fingerprint=self.fingerprint,
        tokens=np.load(self.folder / f"{name}.tokens.npy", mmap_mode="r"),
        starts=np.load(self.folder / f"{name}.starts.npy"),
        paths=tuple(d["path"] for d in self.manifest if d["split"] == name),
    )


def _data_dir(data_dir: str | os.PathLike[str]) -> pathlib.Path:
  data_dir = os.fspath(data_dir) or os.environ.get("DAPE_JAX_DATA", "")
  if "://" in data_dir:
    raise ConfigError(
        f"config.data.dir={data_dir!r}: prepared data is memory-mapped and must"
        " be in a local folder."
    )
  return pathlib.Path(data_dir or "~/.cache/dape_jax").expanduser().absolute()


def _check_files(folder: pathlib.Path) -> None:
  """Raises a ConfigError if a file is not as it was written."""

  def damaged(problem: str) -> ConfigError:
    return ConfigError(
        f"The prepared corpus is damaged: {problem}. Delete the folder {folder}"
        " and run again; it is rebuilt."
    )

  try:
    files = preparation.read_checksums(folder)
  except (OSError, ValueError) as error:
    raise damaged(f"{preparation.CHECKSUMS} cannot be read") from error
  for name, (size, checksum) in files.items():
    file = folder / name
    if not file.is_file():
      raise damaged(f"{name} is missing")
    if file.stat().st_size != size:
      raise damaged(f"{name} has {file.stat().st_size} bytes instead of {size}")
    if preparation.file_checksum(file) != checksum:
      raise damaged(f"the contents of {name} changed")


def open_corpus(
    documents: Iterable[Document],
    name: str,
    tokenizer: str = "bytes",
    data_dir: str | os.PathLike[str] = "",
) -> Corpus:
  """Returns the corpus of the given documents, preparing it if need be.

  Args:
    documents: in any order; exact duplicates are dropped.
    name: letters, digits and underscores; first part of the folder's name.
    tokenizer: "bytes".
    data_dir: see `load_corpus`.

  Raises:
    ConfigError: see `load_corpus`.
  """
  tokenizer = make_tokenizer(tokenizer)
  data_dir = _data_dir(data_dir)
  documents = documents_lib.ordered_unique(documents)
  manifest = documents_lib.make_manifest(documents)
  fingerprint = documents_lib.fingerprint(manifest)
  folder = data_dir / f"{name}_{tokenizer.name}_{fingerprint}"
  if not folder.exists():
    preparation.prepare(documents, manifest, tokenizer, folder)
  _check_files(folder)
  return Corpus(fingerprint, tokenizer, folder)


def load_corpus(
    source: str = "code",
    tokenizer: str = "bytes",
    data_dir: str | os.PathLike[str] = "",
) -> Corpus:
  """Returns a built-in corpus, preparing it on first use.

  The sources are read every time (about a second), so the fingerprint is that
  of the packages as they are installed now; another version gets a folder of
  its own. Any number of processes may call this at once.

  Args:
    source: "code" (train: the standard library, numpy, jax, orbax; validation:
      flax, optax; test: scipy) or "stdlib" (the standard library alone).
    tokenizer: "bytes".
    data_dir: local folder for prepared data; "" means $DAPE_JAX_DATA or
      ~/.cache/dape_jax.

  Raises:
    ConfigError: unknown source or tokenizer, a package missing, data_dir not
      writable, or the prepared data damaged.
  """
  if source not in SOURCES:
    raise ConfigError(
        f"config.data.source={source!r} is unknown."
        f"{did_you_mean(source, SOURCES)}"
    )
  return open_corpus(SOURCES[source](), source, tokenizer, data_dir)
