"""Evaluates runs on the same tokens, and goes on where it was interrupted."""

import dataclasses
import pathlib
import resource
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from dape_jax import __version__, cli, data
from dape_jax.checkpoint.runs import (
    Run,
    check_reads_text,
    load_corpus_of,
    load_tokenizer,
    run_names,
    warn_of_edge,
)
from dape_jax.errors import ConfigError
from dape_jax.evaluation import results
from dape_jax.evaluation.plan import make_plan
from dape_jax.evaluation.row_files import RowFiles
from dape_jax.evaluation.run_reader import RunReader
from dape_jax.evaluation.tasks.prompts import make_prompt
from dape_jax.evaluation.texts import open_texts
from dape_jax.models.layer_encodings import check_positions


@dataclasses.dataclass(frozen=True)
class Settings:
  """What is measured.

  Attributes:
    lengths: inputs per reading, increasing.
    protocol: a name in `protocols.PROTOCOLS`.
    stride: of protocol "sliding"; None is a quarter of each length.
    max_regions: at most so many regions of the longest length are read.
    split: of the corpus.
    data_dir, source: see `runs.load_corpus_of`.
    texts: files to read in place of the corpus, see `texts.open_texts`.
    retrieval: names in `prompts.TASKS`, at the same lengths.
    retrieval_samples: texts for each length and depth.
    batch_size: texts read at a time; 0 is as many as fit in memory.
    chunk: tokens of a text read at a time.
  """

  lengths: Sequence[int]
  protocol: str = "last256"
  stride: int | None = None
  max_regions: int = 32
  split: str = "test"
  data_dir: str = ""
  source: str = ""
  texts: Sequence[str] = ()
  retrieval: Sequence[str] = ()
  retrieval_samples: int = 20
  batch_size: int = 0
  chunk: int = 512


def check_runs(runs: Sequence[Run], lengths: Sequence[int]) -> None:
  """Checks that runs can be read at all lengths.

  Raises:
    ConfigError: they cannot, or not by this script.
  """
  for name, run in zip(run_names(runs), runs, strict=True):
    command = "python -m dape_jax.studies.tasks"
    score = f"{command} --score={shlex.quote(run.checkpoint)}"
    check_reads_text(run, f"it has no perplexity of text: use {score}")
    warn_of_edge(run, name)
    longest = max(lengths)
    check_positions(run.config.model, longest, f"--lengths={longest} of {name}")


def open_split(
    runs: Sequence[Run], settings: Settings
) -> tuple[data.Split, data.Tokenizer]:
  """Returns the text that all runs are evaluated on, and their tokenizer.

  Raises:
    ConfigError: the runs' corpora or tokenizers differ, or a file is not as it
      should be.
  """
  if not settings.texts:
    corpus = load_corpus_of(runs, settings.data_dir, settings.source)
    return corpus.split(settings.split), corpus.tokenizer
  first = runs[0]
  tokenizer = load_tokenizer(first)
  for run in runs[1:]:
    if load_tokenizer(run).sha256 != tokenizer.sha256:
      raise ConfigError(
          f"{first.checkpoint} and {run.checkpoint} have other tokenizers:"
          " their results do not compare."
      )
  if len(settings.texts) > settings.max_regions:
    raise ConfigError(
        f"--regions={settings.max_regions} is less than the"
        f" {len(settings.texts)} files of --text: some would not be read."
    )
  split = open_texts(settings.texts, tokenizer, max(settings.lengths))
  return split, tokenizer


def evaluate_runs(
    runs: Sequence[Run], settings: Settings, folder: pathlib.Path
) -> dict[str, Any]:
  """Evaluates runs on the same tokens.

  Args:
    runs: from `runs.find_run`; the parameters of one at a time are loaded.
    settings: what is measured.
    folder: exists; what is read is kept in `rows` in it, and not read again.

  Returns:
    Results in the schema of `report.results_file`.

  Raises:
    ConfigError: see `check_runs`, `open_split` and `plan.make_plan`.
  """
  check_runs(runs, settings.lengths)
  split, tokenizer = open_split(runs, settings)
  for task in settings.retrieval:
    for length in settings.lengths:
      make_prompt(tokenizer, task, length, None, np.random.default_rng(0))
  plan = make_plan(
      split,
      lengths=settings.lengths,
      protocol=settings.protocol,
      stride=settings.stride,
      max_regions=settings.max_regions,
  )
  num_bytes = sum(int(tokenizer.num_bytes(t).sum()) for t in plan.targets)
  reader = RunReader(
      plan,
      tokenizer,
      RowFiles(folder / "rows"),
      batch_size=settings.batch_size,
      chunk=settings.chunk,
  )
  entries = []
  for name, run in zip(run_names(runs), runs, strict=True):
    readings, retrieval = reader.read(
        name,
        run,
        settings.retrieval,
        settings.lengths,
        settings.retrieval_samples,
    )
    entries.append(
        {
            "name": name,
            "checkpoint": run.checkpoint,
            "encoding": run.config.model.encoding,
            "train_length": run.config.data.length,
            "step": run.step,
            "seed": run.config.seed,
            "rows": [
                results.make_row(length, readings[length], plan, num_bytes)
                for length in plan.lengths
            ],
            "positions": readings[plan.lengths[-1]]["positions"],
            "retrieval": retrieval,
        }
    )
  groups = results.make_groups([run.config for run in runs], entries)
  # Linux counts in kilobytes, macOS in bytes.
  unit = 1 if sys.platform == "darwin" else 1024
  return {
      "dape_jax_version": __version__,
      "command": cli.command(),
      "corpus_fingerprint": split.fingerprint,
      "source": (
          ",".join(settings.texts)
          or settings.source
          or runs[0].config.data.source.split(",")[0]
      ),
      "tokenizer": tokenizer.name,
      "split": split.split_name,
      "protocol": plan.protocol,
      "stride": plan.stride,
      "lengths": list(plan.lengths),
      "peak_rss_bytes": (
          resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
      ),
      "documents": plan.documents,
      "document_names": [split.name(d) for d in plan.documents],
      "runs": entries,
      "groups": groups,
      "comparisons": results.make_comparisons(groups, entries),
  }
