"""Prepares a corpus of any size in bounded memory; interrupted jobs resume.

The plan, which is everything that determines the tokens, is written first
(`plan.json`), and the progress every few seconds (`journal.json`), both in the
subfolder `unfinished`. Documents added after the last journal are written
again.
"""

import dataclasses
import hashlib
import json
import pathlib
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tqdm

from dape_jax.data import manifest as manifest_lib
from dape_jax.data.manifest import SPLITS
from dape_jax.data.shards import SHARD_TOKENS
from dape_jax.data.text_files import Record, TextFile
from dape_jax.data.tfds_sources import TfdsSplit
from dape_jax.data.tokenizers import Tokenizer
from dape_jax.data.writer import WORK, CorpusWriter, Item
from dape_jax.errors import ConfigError
from dape_jax.locking import locked

# Text encoded at once: enough to occupy every core. Tokenizer packages use up
# to 80 bytes of memory per byte of text.
_BATCH_BYTES = 4 << 20
_BATCH_DOCUMENTS = 4096

_COUNTS = ("documents", "empty", "skipped")  # of each source, in the manifest


@dataclasses.dataclass(frozen=True)
class Job:
  """Sources, splits and tokenizer of a corpus to prepare.

  Attributes:
    folder: output folder.
    tokenizer: turns texts into tokens.
    sources: sources of each split, all with the same unit.
    held_out: fraction of the train documents that goes to each split without
      sources of its own.
    on_error: "refuse" damaged documents, or "skip" and count them.
    shard_tokens: see `CorpusWriter`.
    journal_seconds: interval between journals.
  """

  folder: pathlib.Path
  tokenizer: Tokenizer
  sources: Mapping[str, Sequence[TextFile | TfdsSplit]]
  held_out: Mapping[str, float]
  on_error: str = "refuse"
  shard_tokens: int = SHARD_TOKENS
  journal_seconds: float = 5.0

  def plan(self) -> dict[str, Any]:
    """Returns everything that determines the tokens, as JSON values.

    Excludes `on_error`, which matters only once a document is damaged.
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
  """Returns the split of a train document; equal texts share a split."""
  number = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") / 2**64
  for split, fraction in held_out.items():
    if number < fraction:
      return split
    number -= fraction
  return "train"


def run(job: Job) -> dict[str, Any]:
  """Prepares a folder or resumes its preparation; returns its manifest.

  Raises:
    ConfigError: the folder belongs to another command or cannot be written, or
      the text is damaged.
  """
  folder, work = job.folder, job.folder / WORK
  plan = json.loads(json.dumps(job.plan()))  # as it is read back
  try:
    if manifest := _finished(folder, plan):
      return manifest
    if folder.is_dir() and any(folder.iterdir()) and not work.is_dir():
      raise ConfigError(
          f"--output={folder} has other files in it: give an empty or new folder."
      )
    work.mkdir(parents=True, exist_ok=True)
    message = (
        f"--output={folder} is being prepared by another process: wait for it, or"
        " give another folder."
    )
    with locked(work / "lock", message):
      # Another process may have finished in the meantime.
      if manifest := _finished(folder, plan):
        return manifest
      # Without a journal, nothing that was written is kept.
      if (work / "plan.json").exists() and (work / "journal.json").exists():
        old = json.loads((work / "plan.json").read_text("utf-8"))
        _check_plan(folder, old, plan)
      else:
        manifest_lib.write_json(work / "plan.json", plan)
      return _Run(job, plan).run()
  except OSError as error:
    raise ConfigError(
        f"--output={folder}: {error.strerror or error}. Fix this and rerun the"
        " command to resume."
    ) from error


def _finished(folder: pathlib.Path, plan: Any) -> dict[str, Any] | None:
  """Returns the manifest if the folder was prepared with this plan."""
  if not (folder / manifest_lib.MANIFEST).exists():
    return None
  manifest = manifest_lib.read_manifest(folder)
  sources = [
      {name: value for name, value in s.items() if name not in _COUNTS}
      for s in manifest["sources"]
  ]
  _check_plan(folder, {**manifest["settings"], "sources": sources}, plan)
  shutil.rmtree(folder / WORK, ignore_errors=True)  # left if killed at the end
  return manifest


def _check_plan(
    folder: pathlib.Path, old: Mapping[str, Any], new: Mapping[str, Any]
) -> None:
  """Raises ConfigError with the first difference between two plans."""
  differences = [
      f"{name} {old.get(name)!r}, not {new[name]!r}"
      for name in new
      if name != "sources" and old.get(name) != new[name]
  ]
  before, after = old["sources"], new["sources"]
  if len(before) != len(after):
    differences.append(f"{len(before)} sources, not {len(after)}")
  differences += [f"{a}, not {b}" for a, b in zip(before, after) if a != b]
  if differences:
    raise ConfigError(
        f"--output={folder} was started by another command, with"
        f" {differences[0]}: use that command, or another folder."
    )


class _Run:
  """One attempt at a job, starting at its journal if it has one."""

  def __init__(self, job: Job, plan: dict[str, Any]):
    self._job, self._plan = job, plan
    self._journal = job.folder / WORK / "journal.json"
    state = None
    # Where to resume, and the counts of each source so far.
    self._source, self._records = 0, 0
    self._counts: list[list[int]] = []
    if self._journal.exists():
      journal = json.loads(self._journal.read_text("utf-8"))
      self._source, self._records = journal["source"], journal["records"]
      self._counts, state = journal["counts"], journal["state"]
    self._writer = CorpusWriter(
        job.folder, job.tokenizer, shard_tokens=job.shard_tokens, state=state
    )
    self._batch: list[Item] = []
    self._batch_bytes = 0
    self._written, self._shards = time.monotonic(), self._writer.num_shards

  def run(self) -> dict[str, Any]:
    job = self._job
    sources = [(s, x) for s in SPLITS for x in job.sources.get(s, ())]
    sizes = [source.size for _, source in sources]
    done = sum(sizes[: self._source])
    with tqdm.tqdm(
        total=sum(sizes),
        initial=done,
        unit=sources[0][1].unit,
        unit_scale=True,
        desc=str(job.folder.name),
        # Keeps redirected output short.
        mininterval=1 if sys.stderr.isatty() else 60,
    ) as bar:
      for index in range(self._source, len(sources)):
        split, source = sources[index]
        if index == len(self._counts):
          self._counts.append([0, 0, 0])
        first = self._records
        for record in source.records(first):
          self._add(split, source, record, first)
          bar.update(done + record.position - bar.n if record.position else 0)
        self._source, self._records = index + 1, 0
        done += source.size
        bar.update(done - bar.n)
    self._write_batch()
    self._write_journal()  # If killed from here on, only `finish` is repeated.
    settings = dict(self._plan)
    entries = [
        {**source, **dict(zip(_COUNTS, counts, strict=True))}
        for source, counts in zip(
            settings.pop("sources"), self._counts, strict=True
        )
    ]
    self._writer.finish(entries, settings=settings)
    return manifest_lib.read_manifest(job.folder)

  def _add(
      self, split: str, source: TextFile | TfdsSplit, record: Record, first: int
  ) -> None:
    job = self._job
    records = record.number or 1
    if records <= first:  # a damaged end that was counted before
      return
    self._records = records
    counts = self._counts[-1]
    if record.problem:
      if job.on_error != "skip":
        raise ConfigError(
            f"{source.where(record.number)}: {record.problem}. Fix it and prepare"
            " another folder, or rerun the command with --on_error=skip to resume"
            " without damaged documents, which are counted."
        )
      counts[2] += 1
    elif not record.text:
      counts[1] += 1
    else:
      counts[0] += 1
      if split == "train":
        split = held_out_split(record.text, job.held_out)
      origin = (self._source, record.number)
      self._batch.append(Item(split, record.text, origin))
      self._batch_bytes += len(record.text)
    if (
        self._batch_bytes >= _BATCH_BYTES
        or len(self._batch) >= _BATCH_DOCUMENTS
    ):
      self._write_batch()

  def _write_batch(self) -> None:
    if self._batch:
      self._writer.add(self._batch)
    self._batch, self._batch_bytes = [], 0
    late = time.monotonic() - self._written >= self._job.journal_seconds
    if late or self._writer.num_shards > self._shards:
      self._write_journal()

  def _write_journal(self) -> None:
    journal = {
        "source": self._source,
        "records": self._records,
        "counts": self._counts,
        "state": self._writer.flush(),
    }
    manifest_lib.write_json(self._journal, journal)
    self._writer.forget()
    self._written, self._shards = time.monotonic(), self._writer.num_shards
