"""Preparing a corpus whose documents are in memory.

Everything is written in a folder of its own and renamed into place, so that a
folder with the final name is always complete and processes may race.
"""

import pathlib
import shutil
import time
import uuid
from collections.abc import Sequence
from typing import Any

from absl import logging

from dape_jax.data.documents import Document
from dape_jax.data.split_writer import Origin
from dape_jax.data.tokenizers import Tokenizer
from dape_jax.data.writer import CorpusWriter, Item
from dape_jax.errors import ConfigError

_BATCH = 256  # documents encoded at a time


def _write(
    documents: Sequence[Document],
    manifest: Sequence[dict[str, Any]],
    fingerprint: str,
    tokenizer: Tokenizer,
    folder: pathlib.Path,
) -> None:
  folder.mkdir(parents=True)
  writer = CorpusWriter(folder, tokenizer)
  items = [
      Item(document.split, document.text, Origin(number, 0))
      for number, document in enumerate(documents)
  ]
  for first in range(0, len(items), _BATCH):
    writer.add(items[first : first + _BATCH])
  sources = [
      {"name": path, "documents": 1, "skipped": 0, **entry}
      for path, entry in ((e["path"], e) for e in manifest)
  ]
  writer.finish(sources, fingerprint=fingerprint)


def prepare(
    documents: Sequence[Document],
    manifest: Sequence[dict[str, Any]],
    fingerprint: str,
    tokenizer: Tokenizer,
    folder: pathlib.Path,
) -> None:
  """Writes a corpus to `folder`, which no process sees before it is complete.

  Args:
    documents: the corpus, in order.
    manifest, fingerprint: of these documents.
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
    _write(documents, manifest, fingerprint, tokenizer, temporary)
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
