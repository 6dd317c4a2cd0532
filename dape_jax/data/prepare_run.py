"""Preparing a corpus of any size, which goes on where it was interrupted.

What is read, and how, is written down first (`plan.json`), and then every few
seconds how far it is (`journal.json`), both below `unfinished` in the folder.
Documents written after the last journal are written again.
"""

import json
import pathlib
import shutil
import sys
import time
from typing import Any

import tqdm

from dape_jax.data import manifest as manifest_lib
from dape_jax.data.documents import SPLITS
from dape_jax.data.prepare_job import (
    COUNTS,
    Job,
    check_plan,
    finished_plan,
    held_out_split,
)
from dape_jax.data.split_writer import Origin
from dape_jax.data.text_files import Record, TextFile
from dape_jax.data.tfds_sources import TfdsSplit
from dape_jax.data.writer import WORK, CorpusWriter, Item
from dape_jax.errors import ConfigError
from dape_jax.locking import locked

# Text that is encoded at a time: some of it for every core, and packages take up to
# 80 bytes of memory for each of these.
_BATCH_BYTES = 4 << 20
_BATCH_DOCUMENTS = 4096


def _finished(folder: pathlib.Path, plan: Any) -> dict[str, Any] | None:
  if not (folder / manifest_lib.MANIFEST).exists():
    return None
  manifest = manifest_lib.read_manifest(folder)
  check_plan(folder, finished_plan(manifest), plan)
  shutil.rmtree(folder / WORK, ignore_errors=True)  # Killed before it could.
  return manifest


def run(job: Job) -> dict[str, Any]:
  """Prepares a folder, or goes on with it; returns its manifest.

  Raises:
    ConfigError: the folder is of another command, cannot be written, or the
      text is damaged.
  """
  folder, work = job.folder, job.folder / WORK
  # As JSON gives it back.
  plan = json.loads(json.dumps(job.plan()))
  try:
    if manifest := _finished(folder, plan):
      return manifest
    if folder.is_dir() and any(folder.iterdir()) and not work.is_dir():
      raise ConfigError(
          f"--output={folder} has other files in it: give a folder that is empty"
          " or does not exist."
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
      # Before there is a journal nothing was written that would be kept.
      if (work / "plan.json").exists() and (work / "journal.json").exists():
        old = json.loads((work / "plan.json").read_text("utf-8"))
        check_plan(folder, old, plan)
      else:
        manifest_lib.write_json(work / "plan.json", plan)
      return _Run(job, plan).run()
  except OSError as error:
    raise ConfigError(
        f"--output={folder}: {error.strerror or error}. When that is mended, the"
        " same command goes on from there."
    ) from error


class _Run:
  """One run of a job; several may be needed."""

  def __init__(self, job: Job, plan: dict[str, Any]):
    self._job, self._plan = job, plan
    self._journal = job.folder / WORK / "journal.json"
    state = None
    # Where to go on, and for each source up to there what was in it.
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
        # A file that it is written to should not grow by the second.
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
    self._write_journal()  # Killed from here on, it only finishes again.
    self._writer.finish(
        [
            {**source, **dict(zip(COUNTS, counts, strict=True))}
            for source, counts in zip(
                self._plan["sources"], self._counts, strict=True
            )
        ],
        settings={k: v for k, v in self._plan.items() if k != "sources"},
    )
    return manifest_lib.read_manifest(job.folder)

  def _add(
      self, split: str, source: TextFile | TfdsSplit, record: Record, first: int
  ) -> None:
    job = self._job
    records = record.number or 1
    if records <= first:  # The end that is damaged was counted before.
      return
    self._records = records
    counts = self._counts[-1]
    if record.problem:
      if job.on_error != "skip":
        raise ConfigError(
            f"{source.where(record.number)}: {record.problem}. Mend it, and"
            " prepare another folder; or the same command with --on_error=skip"
            " goes on, leaves such documents out and counts them."
        )
      counts[2] += 1
    elif not record.text:
      counts[1] += 1
    else:
      counts[0] += 1
      if split == "train":
        split = held_out_split(record.text, job.held_out)
      origin = Origin(self._source, record.number)
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
