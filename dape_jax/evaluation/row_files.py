"""What is already read, kept on disk so that it is not read again."""

import hashlib
import json
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from dape_jax.errors import ConfigError


def _digest(value: Any) -> str:
  text = json.dumps(value, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


class RowFiles:
  """Small JSON files in a folder, found by all that determines them."""

  def __init__(self, folder: os.PathLike):
    """Initialises; the folder is created with the first file."""
    self._folder = pathlib.Path(folder)

  def _path(self, key: Mapping[str, Any]) -> pathlib.Path:
    return self._folder / f"{_digest(key)[:32]}.json"

  def get(self, key: Mapping[str, Any]) -> Any | None:
    """Returns what was put under `key`; None if nothing was, or it is damaged.

    Damage is said on stderr.

    Args:
      key: of what JSON has.
    """
    path = self._path(key)
    try:
      document = json.loads(path.read_bytes())
      if _digest([key, document["row"]]) == document["sha256"]:
        return document["row"]
    except FileNotFoundError:
      return None
    except (OSError, ValueError, LookupError, TypeError):
      pass
    print(f"{path} is damaged; it is made again.", file=sys.stderr)
    return None

  def put(self, key: Mapping[str, Any], row: Any) -> None:
    """Writes `row`, of what JSON has, atomically.

    Raises:
      ConfigError: it cannot be written, as on a full disk.
    """
    document = {"key": key, "row": row, "sha256": _digest([key, row])}
    path = self._path(key)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
      self._folder.mkdir(parents=True, exist_ok=True)
      partial.write_text(json.dumps(document, indent=1) + "\n")
      os.replace(partial, path)
    except OSError as error:
      raise ConfigError(
          f"{path}: {error.strerror}; the same command goes on from the rows"
          " before, once it can be written."
      ) from error
