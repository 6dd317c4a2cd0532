"""Writing a corpus to disk: datasets, flat memory maps and checksums.

Everything is written in a folder of its own and renamed into place, so that a
folder with the final name is always complete and processes may race.
"""

import contextlib
import json
import os
import pathlib
import shutil
import time
import uuid
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from absl import logging

from dape_jax.data.documents import SPLITS, Document
from dape_jax.data.tokenizers import ByteTokenizer
from dape_jax.errors import ConfigError

CHECKSUMS = "checksums.json"


def file_checksum(file: pathlib.Path) -> int:
  """Returns the CRC-32 of a file, at about the speed of reading it."""
  checksum = 0
  with file.open("rb") as stream:
    while chunk := stream.read(1 << 20):
      checksum = zlib.crc32(chunk, checksum)
  return checksum


def read_checksums(folder: pathlib.Path) -> dict[str, tuple[int, int]]:
  """Returns (bytes, CRC-32) by file name, as written by `prepare`.

  Raises:
    OSError, ValueError: the list is missing or is not valid.
  """
  files = json.loads((folder / CHECKSUMS).read_text("utf-8"))
  if not isinstance(files, dict) or not files:
    raise ValueError(f"{CHECKSUMS} lists no files.")
  return {name: (entry[0], entry[1]) for name, entry in files.items()}


@contextlib.contextmanager
def _quiet_tfds() -> Iterator[None]:
  """Silences what tensorflow-datasets prints, logs and draws."""
  import tensorflow_datasets as tfds  # takes half a second

  verbosity = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)  # it warns of our config names
  tfds.disable_progress_bar()
  try:
    with (
        open(os.devnull, "w") as devnull,
        contextlib.redirect_stdout(devnull),
    ):
      yield
  finally:
    tfds.enable_progress_bar()
    logging.set_verbosity(verbosity)


def _write_flat(blocks: Any, folder: pathlib.Path, split: str) -> None:
  """Writes `{split}.tokens.npy` and `{split}.starts.npy` from the blocks."""
  block_size = blocks[0]["tokens"].size
  last = len(blocks) - 1  # a data source has no negative indices
  num_tokens = block_size * last + blocks[last]["tokens"].size
  tokens = np.lib.format.open_memmap(
      folder / f"{split}.tokens.npy", "w+", np.uint16, (num_tokens,)
  )
  starts = []
  for index in range(len(blocks)):
    block, begin = blocks[index], index * block_size
    tokens[begin : begin + block["tokens"].size] = block["tokens"]
    starts.append(begin + block["document_starts"].astype(np.int64))
  tokens.flush()
  starts.append(np.array([num_tokens], np.int64))
  np.save(folder / f"{split}.starts.npy", np.concatenate(starts))


def _write(
    documents: Sequence[Document],
    manifest: Sequence[dict[str, Any]],
    tokenizer: ByteTokenizer,
    folder: pathlib.Path,
    name: str,
) -> None:
  from dape_jax.data import builders  # imports tensorflow-datasets

  folder.mkdir(parents=True)
  with _quiet_tfds():
    blocks = builders.prepare_datasets(
        documents, tokenizer, name, folder / "tfds"
    )
    shutil.rmtree(folder / "tfds" / "downloads")  # empty
    for split in SPLITS:
      _write_flat(blocks.as_data_source(split), folder, split)
  (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), "utf-8")
  files = {
      file.relative_to(folder).as_posix(): [
          file.stat().st_size,
          file_checksum(file),
      ]
      for file in sorted(folder.rglob("*"))
      if file.is_file()
  }
  (folder / CHECKSUMS).write_text(json.dumps(files, indent=1), "utf-8")


def prepare(
    documents: Sequence[Document],
    manifest: Sequence[dict[str, Any]],
    tokenizer: ByteTokenizer,
    folder: pathlib.Path,
) -> None:
  """Writes a corpus to `folder`, which no process sees before it is complete.

  Args:
    documents: the corpus, in order.
    manifest: of these documents.
    tokenizer: turns documents into tokens.
    folder: final place; its name holds the fingerprint. If another process
      finishes first, its result stays and this one's is dropped.

  Raises:
    ConfigError: the folder cannot be written.
  """
  begin = time.monotonic()
  num_bytes = sum(entry["bytes"] for entry in manifest)
  logging.info(
      "Preparing %d documents (%.1f MB) in %s",
      len(manifest),
      num_bytes / 1e6,
      folder,
  )
  temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
  try:
    _write(documents, manifest, tokenizer, temporary, folder.name)
    try:
      temporary.rename(folder)
    except OSError:
      if not folder.is_dir():
        raise
  except OSError as error:
    # The documents are in memory by now, so it is this folder that fails.
    raise ConfigError(
        f"config.data.dir: cannot write {folder} ({error.strerror or error});"
        " set it, or $DAPE_JAX_DATA, to a writable folder with free space."
    ) from error
  finally:
    shutil.rmtree(temporary, ignore_errors=True)
  logging.info("Prepared it in %.1f s", time.monotonic() - begin)
