"""Evaluates runs on the same tokens; rerun the command to resume."""

import hashlib
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
from dape_jax.evaluation.evaluator import Evaluator, RowFiles, Settings
from dape_jax.evaluation.scoring import make_plan
from dape_jax.evaluation.tasks.prompts import make_prompt
from dape_jax.models.layer_encodings import check_positions


def check_runs(runs: Sequence[Run], lengths: Sequence[int]) -> None:
  """Checks that runs can be evaluated at all lengths.

  Raises:
    ConfigError: a run has too few positions, or was trained on a task.
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
  """Returns the text to evaluate all runs on, and their tokenizer.

  Raises:
    ConfigError: the runs' corpora or tokenizers differ, or see `open_texts`.
  """
  if not settings.texts:
    corpus = load_corpus_of(runs, settings.data_dir, settings.source)
    return corpus.split(settings.split), corpus.tokenizer
  first = runs[0]
  tokenizer = load_tokenizer(first)
  for run in runs[1:]:
    if load_tokenizer(run).sha256 != tokenizer.sha256:
      raise ConfigError(
          f"{first.checkpoint} and {run.checkpoint} have different tokenizers:"
          " their results are not comparable."
      )
  if len(settings.texts) > settings.max_regions:
    raise ConfigError(
        f"--regions={settings.max_regions} is less than the"
        f" {len(settings.texts)} files of --text: some would be left out."
    )
  split = open_texts(settings.texts, tokenizer, max(settings.lengths))
  return split, tokenizer


def open_texts(
    paths: Sequence[str], tokenizer: data.Tokenizer, longest: int
) -> data.Split:
  """Returns a split with one document per file, each ending in EOS.

  Args:
    paths: files, read as bytes.
    tokenizer: the runs' tokenizer.
    longest: context length that every file must be long enough for.

  Returns:
    A split called "text"; its fingerprint is a hash of the files' contents, in
    order.

  Raises:
    ConfigError: a file is missing, empty or too short, or two are identical.
  """
  documents: list[np.ndarray] = []
  paths_by_hash: dict[str, str] = {}
  for path in paths:
    try:
      text = pathlib.Path(path).expanduser().read_bytes()
    except OSError as error:
      raise ConfigError(f"--text={path}: {error.strerror}.") from error
    tokens = np.append(
        tokenizer.encode(text), tokenizer.dtype.type(tokenizer.eos)
    )
    allowed = len(tokens) - 1
    if allowed < longest:
      fix = f"use --lengths up to {allowed}" if allowed else "leave it out"
      raise ConfigError(
          f"--text={path} has {allowed} tokens, too few for"
          f" --lengths={longest}; {fix}."
      )
    digest = hashlib.sha256(text).hexdigest()
    if digest in paths_by_hash:
      raise ConfigError(
          f"--text: {paths_by_hash[digest]} and {path} are the same text, which"
          " would count twice; leave one out."
      )
    paths_by_hash[digest] = path
    documents.append(tokens)
  contents = "".join(paths_by_hash)
  return data.Split(
      split_name="text",
      fingerprint=hashlib.sha256(contents.encode()).hexdigest()[:16],
      tokens=np.concatenate(documents),
      starts=np.cumsum([0, *map(len, documents)]),
      name_of=paths.__getitem__,
  )


def evaluate_runs(
    runs: Sequence[Run], settings: Settings, folder: pathlib.Path
) -> dict[str, Any]:
  """Evaluates runs on the same tokens.

  Args:
    runs: from `runs.find_run`; parameters are loaded for one run at a time.
    settings: what to evaluate.
    folder: existing folder; rows are cached in its `rows` subfolder.

  Returns:
    Results in the schema of `report.results_file`.

  Raises:
    ConfigError: see `check_runs`, `open_split` and `scoring.make_plan`.
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
  evaluator = Evaluator(plan, tokenizer, RowFiles(folder / "rows"), settings)
  entries = []
  for name, run in zip(run_names(runs), runs, strict=True):
    scores, retrieval = evaluator.evaluate(name, run)
    entries.append(
        {
            "name": name,
            "checkpoint": run.checkpoint,
            "encoding": run.config.model.encoding,
            "train_length": run.config.data.length,
            "step": run.step,
            "seed": run.config.seed,
            "rows": [
                results.make_row(length, scores[length], plan, num_bytes)
                for length in plan.lengths
            ],
            "positions": scores[plan.lengths[-1]]["positions"],
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
