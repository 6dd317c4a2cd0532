"""Writes the tokens of a split to shards in bounded memory.

Tokens are appended to a plain file, which becomes a shard once it is full. So
shards depend on the token stream alone. To resume, the plain files are
truncated to their sizes at the last `state`.
"""

import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from dape_jax.data import manifest as manifest_lib
from dape_jax.data.shards import BLOCK_SIZE, DATASET, write_shard


class SplitWriter:
  """Writes the shards of a split and the starts and origins of its documents.

  Attributes:
    documents, tokens, bytes: totals added so far; bytes count the text.
    shards: entries of the manifest.
  """

  def __init__(
      self,
      folder: pathlib.Path,
      work: pathlib.Path,
      name: str,
      *,
      dtype: np.dtype,
      shard_tokens: int,
      state: Mapping[str, Any] | None = None,
  ):
    """Starts, or resumes from a state.

    Args:
      folder: output folder of the shards.
      work: folder of the plain files.
      name: name of the split.
      dtype: token dtype.
      shard_tokens: size of every shard except the last.
      state: result of `state`; documents added later are discarded.

    Raises:
      OSError: the files cannot be written, or have become shorter.
    """
    self._folder, self._work, self._name = folder, work, name
    self._dtype = dtype.newbyteorder("<")
    self._shard_tokens = shard_tokens
    state = state or {"documents": 0, "tokens": 0, "bytes": 0, "shards": []}
    self.documents: int = state["documents"]
    self.tokens: int = state["tokens"]
    self.bytes: int = state["bytes"]
    self.shards: list[dict[str, Any]] = list(state["shards"])
    self._starts = self._reopen("starts", 8 * self.documents)
    self._origins = self._reopen("origins", 8 * self.documents)
    self._raw = self._reopen(len(self.shards), self._pending * dtype.itemsize)
    self._full: list[pathlib.Path] = []
    for file in work.glob(f"{name}.tokens.*"):
      if file != self._file(len(self.shards)):
        file.unlink()

  @property
  def _pending(self) -> int:
    """Returns the number of tokens not yet in a shard."""
    return self.tokens - len(self.shards) * self._shard_tokens

  def _file(self, what: str | int) -> pathlib.Path:
    ending = what if isinstance(what, str) else f"tokens.{what:05}"
    return self._work / f"{self._name}.{ending}"

  def _reopen(self, what: str | int, size: int) -> BinaryIO:
    """Opens a file for writing, truncated to its first `size` bytes."""
    file = self._file(what)
    stream = file.open("r+b" if file.exists() else "x+b")
    if stream.seek(0, os.SEEK_END) < size:
      raise OSError(f"{file} has become shorter")
    stream.truncate(size)
    stream.seek(size)
    return stream

  def add(
      self,
      ids: Sequence[np.ndarray],
      origins: Sequence[tuple[int, int]],
      num_bytes: int,
      eos: int,
  ) -> None:
    """Appends documents, each followed by EOS.

    Args:
      ids: tokens of each document, at least one.
      origins: see `writer.Item`.
      num_bytes: total size of the texts.
      eos: id of the EOS token.
    """
    ends = np.cumsum([len(row) + 1 for row in ids], dtype=np.int64)
    stream = np.empty(ends[-1], self._dtype)
    begin = 0
    for row, end in zip(ids, ends.tolist(), strict=True):
      stream[begin : end - 1], stream[end - 1], begin = row, eos, end
    starts = self.tokens + np.concatenate([[0], ends[:-1]])
    self._starts.write(starts.astype("<i8").tobytes())
    self._origins.write(np.array(origins, "<u4").tobytes())
    self.documents += len(ids)
    self.bytes += num_bytes
    while len(stream):
      room = self._shard_tokens - self._pending
      self._raw.write(stream[:room].tobytes())
      self.tokens += len(stream[:room])
      stream = stream[room:]
      if self._pending == self._shard_tokens:
        self._cut()
        self._raw = self._reopen(len(self.shards), 0)

  def _cut(self) -> None:
    """Writes the pending tokens as a shard."""
    self.flush()
    number, size = len(self.shards), self._pending
    begin = number * self._shard_tokens
    starts = np.memmap(self._file("starts"), "<i8", "r")
    first, last = np.searchsorted(starts, [begin, begin + size])
    file = f"{DATASET}-{self._name}.array_record-{number:05}"
    content = write_shard(
        self._folder / file, self._blocks(number), starts[first:last] - begin
    )
    self.shards.append(
        {
            **manifest_lib.file_entry(self._folder, file),
            "tokens": size,
            "content_sha256": content,
        }
    )
    # Kept until a state that lists the shard is saved.
    self._raw.close()
    self._full.append(self._file(number))

  def _blocks(self, number: int) -> Iterator[np.ndarray]:
    # Read rather than mapped: mapped pages count as memory in use.
    with self._file(number).open("rb") as stream:
      while values := stream.read(BLOCK_SIZE * self._dtype.itemsize):
        yield np.frombuffer(values, self._dtype)

  def flush(self) -> None:
    """Flushes everything added so far to disk."""
    for stream in (self._starts, self._origins, self._raw):
      stream.flush()
      os.fsync(stream.fileno())

  def state(self) -> dict[str, Any]:
    """Returns the JSON state to resume from; call `flush` first."""
    names = ("documents", "tokens", "bytes", "shards")
    return {name: getattr(self, name) for name in names}

  def forget(self) -> None:
    """Removes files not needed once the current state is saved."""
    for file in self._full:
      file.unlink()
    self._full.clear()

  def finish(self) -> list[str]:
    """Writes the last shard; returns the names of the other files written."""
    if self._pending:
      self._cut()
    for stream in (self._starts, self._origins):
      stream.close()
    end = np.array([self.tokens], "<i8")
    documents = self.documents
    starts, origins = f"{self._name}.starts.npy", f"{self._name}.origins.npy"
    self._write_npy(starts, "starts", "<i8", (documents + 1,), end.tobytes())
    self._write_npy(origins, "origins", "<u4", (documents, 2))
    return [starts, origins]

  def _write_npy(
      self, name: str, what: str, dtype: str, shape: tuple, end: bytes = b""
  ) -> None:
    # Written rather than mapped: a full disk kills a process that maps the
    # file.
    with (
        (self._folder / name).open("wb") as out,
        self._file(what).open("rb") as values,
    ):
      header = {"descr": dtype, "fortran_order": False, "shape": shape}
      np.lib.format.write_array_header_1_0(out, header)
      shutil.copyfileobj(values, out, 1 << 20)
      out.write(end)
      out.flush()
      os.fsync(out.fileno())
