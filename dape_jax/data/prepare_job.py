"""What is prepared: sources, splits and tokenizer, and whether they are the same."""

import dataclasses
import hashlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from dape_jax.data.documents import SPLITS
from dape_jax.data.shards import SHARD_TOKENS
from dape_jax.data.text_files import TextFile
from dape_jax.data.tfds_sources import TfdsSplit
from dape_jax.data.tokenizers import Tokenizer
from dape_jax.errors import ConfigError

COUNTS = ("documents", "empty", "skipped")


@dataclasses.dataclass(frozen=True)
class Job:
  """What is prepared.

  Attributes:
    folder: --output.
    tokenizer: turns texts into tokens.
    sources: of each split; all of one unit.
    held_out: fraction of the documents of train that go to each split that has
      no sources of its own.
    on_error: "refuse", or "skip" and count what is damaged.
    shard_tokens: see `CorpusWriter`.
    journal_seconds: between journals.
  """

  folder: pathlib.Path
  tokenizer: Tokenizer
  sources: Mapping[str, Sequence[TextFile | TfdsSplit]]
  held_out: Mapping[str, float]
  on_error: str = "refuse"
  shard_tokens: int = SHARD_TOKENS
  journal_seconds: float = 5.0

  def plan(self) -> dict[str, Any]:
    """Returns all that determines the tokens, of what JSON has.

    Not `on_error`: until something is damaged it makes no difference.
    """
    return {
        "tokenizer": self.tokenizer.name,
        "tokenizer_sha256": self.tokenizer.sha256,
        "held_out": dict(self.held_out),
        "shard_tokens": self.shard_tokens,
        "sources": [
            {"split": split, **source.identity()}
            for split in SPLITS
            for source in self.sources.get(split, ())
        ],
    }


def held_out_split(text: bytes, held_out: Mapping[str, float]) -> str:
  """Returns the split of a document of train, the same for equal texts."""
  number = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") / 2**64
  for split, fraction in held_out.items():
    if number < fraction:
      return split
    number -= fraction
  return "train"


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
  """Returns how two plans differ, or ""."""
  for name in new:
    if name != "sources" and old.get(name) != new[name]:
      return f"{name} {old.get(name)!r}, not {new[name]!r}"
  if len(old["sources"]) != len(new["sources"]):
    return f"{len(old['sources'])} sources, not {len(new['sources'])}"
  for before, after in zip(old["sources"], new["sources"], strict=True):
    if before != after:
      return f"{before}, not {after}"
  return ""


def finished_plan(manifest: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the plan that a folder was prepared with."""
  sources = [
      {name: value for name, value in s.items() if name not in COUNTS}
      for s in manifest["sources"]
  ]
  return {**manifest["settings"], "sources": sources}


def check_plan(
    folder: pathlib.Path, old: Mapping[str, Any], new: Mapping[str, Any]
) -> None:
  """Checks that a folder is of the same plan.

  Raises:
    ConfigError: it is not; says how they differ first.
  """
  if difference := _difference(old, new):
    raise ConfigError(
        f"--output={folder} is of another command, with {difference}: give that"
        " command, or another folder."
    )
