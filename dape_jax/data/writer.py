"""Writes documents to a prepared folder."""

import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dape_jax.data import manifest as manifest_lib
from dape_jax.data.manifest import SPLITS
from dape_jax.data.shards import BLOCK_SIZE, SHARD_TOKENS, write_metadata
from dape_jax.data.split_writer import SplitWriter
from dape_jax.data.tokenizers import Tokenizer
from dape_jax.errors import ConfigError

WORK = "unfinished"  # subfolder; removed once the folder is complete


class Item(NamedTuple):
  """A document to write.

  Attributes:
    split: "train", "validation" or "test".
    text: not empty.
    origin: index of the source; number of the line, row or example in it, from
      1, or 0 for the whole source.
  """

  split: str
  text: bytes
  origin: tuple[int, int]


class CorpusWriter:
  """Writes documents in order, then the manifest."""

  def __init__(
      self,
      folder: pathlib.Path,
      tokenizer: Tokenizer,
      *,
      shard_tokens: int = SHARD_TOKENS,
      state: Mapping[str, Any] | None = None,
  ):
    """Starts, or resumes from a state.

    Args:
      folder: existing folder that no other process writes to.
      tokenizer: turns texts into tokens.
      shard_tokens: size of every shard except the last of a split, a multiple
        of BLOCK_SIZE.
      state: result of `flush`.

    Raises:
      OSError: the folder cannot be written.
    """
    self._folder = folder
    self._work = folder / WORK
    self._work.mkdir(exist_ok=True)
    self._tokenizer = tokenizer
    self._shard_tokens = shard_tokens
    self.splits = {
        name: SplitWriter(
            folder,
            self._work,
            name,
            dtype=tokenizer.dtype,
            shard_tokens=shard_tokens,
            state=state and state[name],
        )
        for name in SPLITS
    }

  def add(self, items: Sequence[Item]) -> None:
    """Encodes a batch of documents and appends them to their splits."""
    ids = self._tokenizer.encode_batch([item.text for item in items])
    for name, split in self.splits.items():
      mine = [i for i, item in enumerate(items) if item.split == name]
      if mine:
        split.add(
            [ids[i] for i in mine],
            [items[i].origin for i in mine],
            sum(len(items[i].text) for i in mine),
            self._tokenizer.eos,
        )

  @property
  def num_shards(self) -> int:
    """Returns the number of complete shards."""
    return sum(len(split.shards) for split in self.splits.values())

  def flush(self) -> dict[str, Any]:
    """Flushes to disk; returns the state to resume from."""
    for split in self.splits.values():
      split.flush()
    return {name: split.state() for name, split in self.splits.items()}

  def forget(self) -> None:
    """Removes files not needed once the current state is saved."""
    for split in self.splits.values():
      split.forget()

  def finish(
      self,
      sources: Sequence[Mapping[str, Any]],
      *,
      fingerprint: str = "",
      settings: Mapping[str, Any] | None = None,
  ) -> None:
    """Writes the remaining tokens and the manifest.

    Can be repeated from the last state if interrupted.

    Args:
      sources: entries of the manifest, indexed by the origins.
      fingerprint: hash of the texts; "" hashes tokens and document boundaries.
      settings: recorded in the manifest.

    Raises:
      ConfigError: a split has no documents.
      OSError: the folder cannot be written.
    """
    for name, split in self.splits.items():
      if not split.documents:
        raise ConfigError(self._nothing_in(name, sources))
    names = [file for split in self.splits.values() for file in split.finish()]
    splits = {name: split.state() for name, split in self.splits.items()}
    names += self._copy_tokenizer()
    names += write_metadata(self._folder, splits, self._tokenizer.dtype)
    content = fingerprint or manifest_lib.digest_of(
        {
            name: [shard["content_sha256"] for shard in split["shards"]]
            for name, split in splits.items()
        }
    )
    sha256 = self._tokenizer.sha256
    manifest = {
        "format": manifest_lib.FORMAT,
        "version": manifest_lib.VERSION,
        "fingerprint": manifest_lib.with_tokenizer(content, sha256),
        "tokenizer": {
            "name": self._tokenizer.name,
            "sha256": sha256,
            "vocab_size": self._tokenizer.vocab_size,
            "files": [file.name for file in self._tokenizer.files],
        },
        "dtype": self._tokenizer.dtype.name,
        "block_tokens": BLOCK_SIZE,
        "shard_tokens": self._shard_tokens,
        "splits": splits,
        "files": [manifest_lib.file_entry(self._folder, n) for n in names],
        "sources": list(sources),
        "settings": dict(settings or {}),
    }
    manifest_lib.write_json(self._folder / manifest_lib.MANIFEST, manifest)
    shutil.rmtree(self._work)

  def _nothing_in(self, name: str, sources: Sequence[Mapping[str, Any]]) -> str:
    """Returns why a split has no documents, and the fix."""
    total = sum(split.documents for split in self.splits.values())
    skipped = sum(source["skipped"] for source in sources)
    if not total and skipped:
      return (
          f"All {skipped:,} documents were damaged. Run without --on_error=skip and"
          " with another --output to see how the first is damaged."
      )
    if not total:
      return "The files contain no text."
    if name == "train":
      return (
          f"All {total:,} documents were held out and none is left for train: give"
          " --validation=FILES and --test=FILES, and another --output."
      )
    return (
        f"None of the {total:,} documents was held out for {name}, and documents"
        f" are not divided between splits: give --{name}=FILES, or a larger"
        f" --{name}_fraction, and another --output."
    )

  def _copy_tokenizer(self) -> list[str]:
    folder = self._folder / "tokenizer"
    if self._tokenizer.files:
      folder.mkdir(exist_ok=True)
    for file in self._tokenizer.files:
      shutil.copyfile(file, folder / file.name)
    return [f"tokenizer/{file.name}" for file in self._tokenizer.files]
