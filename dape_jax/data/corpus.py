"""A prepared corpus: opened at once, read when asked for."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from dape_jax.data import documents as documents_lib
from dape_jax.data import manifest as manifest_lib
from dape_jax.data import preparation
from dape_jax.data.documents import SPLITS, Document
from dape_jax.data.token_stream import TokenStream
from dape_jax.data.tokenizers import Tokenizer, make_tokenizer
from dape_jax.data.writer import WORK
from dape_jax.errors import ConfigError, did_you_mean


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
  """One split as a flat stream: each document's tokens, then one EOS.

  Attributes:
    split_name: "train", "validation" or "test".
    fingerprint: of the whole corpus.
    tokens: `[begin:end]` is an array of those, uint16 or uint32, and `size` how
      many there are.
    starts: int64 [num_documents + 1], index of each document's first token;
      the last is the number of tokens.
    name_of: returns the name of a document by its index.
  """

  split_name: str
  fingerprint: str
  tokens: TokenStream | np.ndarray
  starts: np.ndarray
  name_of: Callable[[int], str]

  @property
  def num_documents(self) -> int:
    return len(self.starts) - 1

  def name(self, index: int) -> str:
    """Returns where document `index` is from.

    Of a built-in corpus its path relative to its package root, of another the
    file, or "file:line".
    """
    return self.name_of(index)


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
  """A prepared corpus.

  Attributes:
    fingerprint: identifies the text, its splits and, but for bytes, the
      tokenizer. Results compare only at equal fingerprints.
    tokenizer: that made the tokens.
    folder: where it lies.
    manifest: what it holds and where that is from (docs/data.md).
    splits: names of the splits.
  """

  fingerprint: str
  tokenizer: Tokenizer
  folder: pathlib.Path
  manifest: dict[str, Any] = dataclasses.field(repr=False)
  splits: tuple[str, ...] = SPLITS

  def split(self, name: str) -> Split:
    """Opens a split; reads nothing.

    Raises:
      ConfigError: there is none called `name`.
    """
    if name not in self.splits:
      raise ConfigError(
          f"The corpus has no split {name!r}.{did_you_mean(name, self.splits)}"
      )
    entry = self.manifest["splits"][name]
    tokens = TokenStream(
        [self.folder / shard["file"] for shard in entry["shards"]],
        size=entry["tokens"],
        dtype=np.dtype(self.manifest["dtype"]),
        shard_tokens=self.manifest["shard_tokens"],
    )
    array = lambda what: np.load(
        self.folder / f"{name}.{what}.npy", mmap_mode="r"
    )
    origins, sources = array("origins"), self.manifest["sources"]

    def name_of(index: int) -> str:
      source, number = origins[index].tolist()
      return sources[source]["name"] + (f":{number}" if number else "")

    return Split(
        split_name=name,
        fingerprint=self.fingerprint,
        tokens=tokens,
        starts=array("starts"),
        name_of=name_of,
    )


def _data_dir(data_dir: str | os.PathLike[str]) -> pathlib.Path:
  data_dir = os.fspath(data_dir) or os.environ.get("DAPE_JAX_DATA", "")
  if "://" in data_dir:
    raise ConfigError(
        f"config.data.dir={data_dir!r}: prepared data is memory-mapped and must"
        " be in a local folder."
    )
  return pathlib.Path(data_dir or "~/.cache/dape_jax").expanduser().absolute()


def open_folder(folder: str | os.PathLike[str]) -> Corpus:
  """Returns the corpus of a prepared folder; any number of processes may.

  Sizes of all files are checked, their contents when they are read.

  Raises:
    ConfigError: it is not there, not finished, damaged or of another version.
  """
  folder = pathlib.Path(folder).expanduser().absolute()
  if not (folder / manifest_lib.MANIFEST).is_file():
    unfinished = (folder / WORK).is_dir()
    raise ConfigError(
        f"{folder} is "
        + (
            "not finished: give the command that prepares it again."
            if unfinished
            else "no prepared folder: python -m dape_jax.data.prepare"
            " --output=FOLDER --train=FILES makes one; for eval.py --source=FOLDER"
            " says where it is now."
        )
    )
  manifest = manifest_lib.read_manifest(folder)
  manifest_lib.check_sizes(folder, manifest)
  entry = manifest["tokenizer"]
  location = entry["name"]
  if entry["files"]:
    location = os.fspath(folder / "tokenizer" / entry["files"][0])
  tokenizer = make_tokenizer(location)
  if tokenizer.sha256 != entry["sha256"]:
    raise ConfigError(
        f"{location} has changed since {folder} was prepared: put it back."
    )
  return Corpus(manifest["fingerprint"], tokenizer, folder, manifest)


def open_corpus(
    documents: Iterable[Document],
    name: str,
    tokenizer: str = "bytes",
    data_dir: str | os.PathLike[str] = "",
) -> Corpus:
  """Returns the corpus of the given documents, preparing it if need be.

  Any number of processes may call this at once.

  Args:
    documents: in any order; exact duplicates are dropped.
    name: letters, digits and underscores; first part of the folder's name.
    tokenizer: see `make_tokenizer`.
    data_dir: see `load_corpora`.

  Raises:
    ConfigError: see `load_corpora`.
  """
  made = make_tokenizer(tokenizer)
  data_dir = _data_dir(data_dir)
  documents = documents_lib.ordered_unique(documents)
  manifest = documents_lib.make_manifest(documents)
  content = documents_lib.fingerprint(manifest)
  fingerprint = manifest_lib.with_tokenizer(content, made.sha256)
  version = manifest_lib.VERSION
  folder = data_dir / f"{name}_{made.name}_{fingerprint}_v{version}"
  if not folder.exists():
    preparation.prepare(documents, manifest, content, made, folder)
  return open_folder(folder)
