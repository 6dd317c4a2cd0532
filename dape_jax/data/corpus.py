"""Prepared corpora: opening reads no tokens."""

import dataclasses
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from dape_jax.data import manifest as manifest_lib
from dape_jax.data.manifest import SPLITS
from dape_jax.data.shards import TokenStream
from dape_jax.data.tokenizers import Tokenizer, make_tokenizer
from dape_jax.data.writer import WORK
from dape_jax.errors import ConfigError, did_you_mean


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
  """One split as a flat stream: each document's tokens, then one EOS.

  Attributes:
    split_name: "train", "validation" or "test".
    fingerprint: that of the corpus.
    tokens: the stream; `[begin:end]` returns a uint16 or uint32 array, `size`
      is the number of tokens.
    starts: int64 [num_documents + 1], index of each document's first token;
      the last is the number of tokens.
    name_of: maps a document's index to its name.
  """

  split_name: str
  fingerprint: str
  tokens: TokenStream | np.ndarray
  starts: np.ndarray
  name_of: Callable[[int], str]

  def name(self, index: int) -> str:
    """Returns the origin of document `index`.

    A path relative to the package root in a built-in corpus, else the file or
    "file:line".
    """
    return self.name_of(index)


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
  """A prepared corpus.

  Attributes:
    fingerprint: identifies the text, its splits and, except for bytes, the
      tokenizer. Only results with equal fingerprints are comparable.
    tokenizer: the one that produced the tokens.
    folder: location on disk.
    manifest: contents and their origins (docs/data.md).
    splits: names of the splits.
  """

  fingerprint: str
  tokenizer: Tokenizer
  folder: pathlib.Path
  manifest: dict[str, Any] = dataclasses.field(repr=False)
  splits: tuple[str, ...] = SPLITS

  def split(self, name: str) -> Split:
    """Opens a split without reading its tokens.

    Raises:
      ConfigError: no split is called `name`.
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


def open_folder(folder: str | os.PathLike[str]) -> Corpus:
  """Returns the corpus of a prepared folder.

  Checks the sizes of all files; contents are checked when they are read. Safe
  to call from several processes at once.

  Raises:
    ConfigError: the folder is missing, unfinished, damaged or has another
      version.
  """
  folder = pathlib.Path(folder).expanduser().absolute()
  if not (folder / manifest_lib.MANIFEST).is_file():
    unfinished = (folder / WORK).is_dir()
    raise ConfigError(
        f"{folder} is "
        + (
            "not finished: rerun the command that prepares it to resume."
            if unfinished
            else "not a prepared folder: create one with python -m"
            " dape_jax.data.prepare --output=FOLDER --train=FILES; if it has moved,"
            " pass --source=FOLDER to eval.py."
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
        f"{location} has changed since {folder} was prepared: restore the original."
    )
  return Corpus(manifest["fingerprint"], tokenizer, folder, manifest)
