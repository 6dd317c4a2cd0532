"""The manifest of a prepared folder: contents, checks and fingerprint."""

import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from dape_jax.errors import ConfigError

MANIFEST = "manifest.json"
FORMAT = "dape_jax.tokens"
VERSION = 2  # version 1 stored flat files
SPLITS = ("train", "validation", "test")


def write_json(file: pathlib.Path, values: Any) -> None:
  """Writes JSON atomically: the file is always complete, old or new."""
  temporary = file.with_name(f"{file.name}.tmp")
  with temporary.open("w", encoding="utf-8") as stream:
    json.dump(values, stream, indent=1)
    stream.flush()
    os.fsync(stream.fileno())
  temporary.replace(file)


def file_sha256(
    file: pathlib.Path, on_bytes: Callable[[int], Any] = lambda size: None
) -> str:
  """Returns the sha256 of a file; passes the size of each chunk to on_bytes."""
  digest = hashlib.sha256()
  with file.open("rb") as stream:
    while chunk := stream.read(1 << 20):
      digest.update(chunk)
      on_bytes(len(chunk))
  return digest.hexdigest()


def file_entry(folder: pathlib.Path, name: str) -> dict[str, Any]:
  """Returns the name, bytes and sha256 of a file in a folder."""
  file = folder / name
  return {
      "file": name,
      "bytes": file.stat().st_size,
      "sha256": file_sha256(file),
  }


def with_tokenizer(content: str, tokenizer_sha256: str) -> str:
  """Returns the fingerprint of a text encoded with a tokenizer.

  Args:
    content: 16 hex digits.
    tokenizer_sha256: "" for bytes, which leaves the fingerprint unchanged.
  """
  suffix = tokenizer_sha256[:8]
  return f"{content}-{suffix}" if suffix else content


def is_of_tokenizer(fingerprint: str, tokenizer_sha256: str) -> bool:
  """Returns whether `with_tokenizer` made a fingerprint for this tokenizer."""
  return fingerprint.partition("-")[2] == tokenizer_sha256[:8]


def digest_of(values: Any) -> str:
  """Returns 16 hex digits of the hash of JSON values."""
  canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
  return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _damaged(folder: pathlib.Path, problem: str) -> ConfigError:
  return ConfigError(
      f"The prepared folder is damaged: {problem}. Restore the file from a copy,"
      f" or delete the folder {folder} and prepare it again."
  )


def read_manifest(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the manifest of a folder.

  Raises:
    ConfigError: it is missing, damaged or has another version.
  """
  try:
    values = json.loads((folder / MANIFEST).read_text("utf-8"))
  except (OSError, ValueError) as error:
    raise _damaged(folder, f"{MANIFEST} cannot be read ({error})") from error
  if not isinstance(values, dict) or values.get("format") != FORMAT:
    raise _damaged(folder, f"{MANIFEST} does not belong to a prepared folder")
  if values.get("version") != VERSION:
    raise ConfigError(
        f"{folder} has version {values.get('version')} of the format, but this"
        f" dape_jax reads version {VERSION}: prepare it again, or install the"
        " release that wrote it."
    )
  return values


def _entries(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
  """Returns file, bytes and sha256 of every file except the manifest."""
  shards = (s for split in manifest["splits"].values() for s in split["shards"])
  return [*manifest["files"], *shards]


def check_sizes(folder: pathlib.Path, manifest: Mapping[str, Any]) -> None:
  """Checks that all files exist with their recorded sizes.

  Contents are not read; see `verify`.

  Raises:
    ConfigError: a file is missing or has another size.
  """
  for entry in _entries(manifest):
    try:
      size = (folder / entry["file"]).stat().st_size
    except OSError as error:
      problem = f"{entry['file']} is missing ({error.strerror})"
      raise _damaged(folder, problem) from error
    if size != entry["bytes"]:
      raise _damaged(
          folder,
          f"{entry['file']} has {size} bytes instead of {entry['bytes']}",
      )


def total_bytes(manifest: Mapping[str, Any]) -> int:
  """Returns the total size of all files except the manifest."""
  return sum(entry["bytes"] for entry in _entries(manifest))


def verify(
    folder: pathlib.Path,
    manifest: Mapping[str, Any],
    on_bytes: Callable[[int], Any],
) -> int:
  """Checks the contents of all files.

  Args:
    folder, manifest: a prepared folder and its manifest.
    on_bytes: receives the size of each chunk that was read.

  Returns:
    The number of files.

  Raises:
    ConfigError: a file has changed.
  """
  check_sizes(folder, manifest)
  entries = _entries(manifest)
  for entry in entries:
    if file_sha256(folder / entry["file"], on_bytes) != entry["sha256"]:
      raise _damaged(folder, f"the contents of {entry['file']} changed")
  return len(entries)
