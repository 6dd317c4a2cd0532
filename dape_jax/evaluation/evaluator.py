"""Evaluates one run at a time; caches every row so that it can resume."""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from dape_jax import __version__, models
from dape_jax.checkpoint.runs import Run, load_params
from dape_jax.config.dicts import experiment_to_dict
from dape_jax.errors import ConfigError
from dape_jax.evaluation.memory import BatchSize
from dape_jax.evaluation.perplexity import make_segment_scores, make_step
from dape_jax.evaluation.progress import Progress
from dape_jax.evaluation.scoring import Plan, score_lengths
from dape_jax.evaluation.tasks.retrieval import score_retrieval

# Depths of the needle, from the start to the end of the text.
_DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
_RETRIEVAL_SEED = 0


def _digest(value: Any) -> str:
  text = json.dumps(value, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Settings:
  """Settings of an evaluation.

  Attributes:
    lengths: context lengths, increasing.
    protocol: a name in `protocols.PROTOCOLS`.
    stride: for protocol "sliding"; None means a quarter of each length.
    max_regions: maximum number of regions of the longest length.
    split: of the corpus.
    data_dir, source: see `runs.load_corpus_of`.
    texts: files to evaluate instead of the corpus.
    retrieval: names in `prompts.TASKS`, evaluated at the same lengths.
    retrieval_samples: texts for each length and depth.
    batch_size: texts per batch; 0 means the largest that fits in memory.
    chunk: tokens per step.
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


class RowFiles:
  """Results cached as JSON files, named by a hash of their inputs."""

  def __init__(self, folder: os.PathLike):
    """Initializes the cache; the first `put` creates the folder."""
    self._folder = pathlib.Path(folder)

  def _path(self, key: Mapping[str, Any]) -> pathlib.Path:
    return self._folder / f"{_digest(key)[:32]}.json"

  def get(self, key: Mapping[str, Any]) -> Any | None:
    """Returns the row stored under `key`, or None if missing or damaged.

    Reports damage on stderr.

    Args:
      key: JSON-serializable.
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
    print(f"{path} is damaged; recomputing it.", file=sys.stderr)
    return None

  def put(self, key: Mapping[str, Any], row: Any) -> None:
    """Writes `row`, which is JSON-serializable, atomically.

    Raises:
      ConfigError: the file cannot be written, for example on a full disk.
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
          f"{path}: {error.strerror}; fix this and rerun the command to resume"
          " from the rows already written."
      ) from error


class Evaluator:
  """Evaluates runs one after the other, with shared compiled programs."""

  def __init__(
      self, plan: Plan, tokenizer: Any, files: RowFiles, settings: Settings
  ):
    """Initializes the evaluator.

    Args:
      plan: what to score.
      tokenizer: the runs' tokenizer.
      files: cache of results.
      settings: retrieval tasks, batch size and chunk.
    """
    self._plan = plan
    self._tokenizer = tokenizer
    self._files = files
    self._settings = settings
    self._batch_size = BatchSize(settings.batch_size, settings.chunk)
    # Runs that differ only in their seed share compiled programs.
    self._step_of = functools.cache(make_step)

  def evaluate(
      self, name: str, run: Run
  ) -> tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]:
    """Returns the nats at each length and the retrieval rows of a run.

    Args:
      name: of the run in messages.
      run: its parameters are loaded only if a row is not cached.

    Returns:
      {length: see `score_lengths`}, and rows as `score_retrieval` returns them.

    Raises:
      ConfigError: the checkpoint is damaged.
    """
    keys = self._keys(run)
    cached = {place: self._files.get(key) for place, key in keys.items()}
    for (task, length), row in cached.items():
      if row is not None:
        what = f"{name}: {task}" if task else name
        print(f"{what}: length {length}: already evaluated", file=sys.stderr)
    missing = [place for place, row in cached.items() if row is None]
    if missing:
      params = jax.device_put(load_params(run), jax.local_devices()[0])
      for place, row in self._compute(name, run, params, missing):
        self._files.put(keys[place], row)
        cached[place] = row
    scores = {n: cached["", n] for n in self._plan.lengths}
    retrieval = [rows for (task, _), rows in cached.items() if task]
    return scores, list(itertools.chain.from_iterable(retrieval))

  def _keys(self, run: Run) -> dict[tuple[str, int], dict[str, Any]]:
    """Returns {(retrieval task or "", length): all that determines the row}."""
    common = {
        "dape_jax_version": __version__,
        "model": experiment_to_dict(run.config)["model"],
        "step": run.step,
        "params": run.checksum,
        "tokenizer": self._tokenizer.name,
    }
    # With this edge the numbers depend on where chunks end.
    if run.config.model.encoding_options.get("edge") == "zero":
      common["chunk"] = self._settings.chunk
    plan = self._plan
    text = common | {
        "text": plan.split.fingerprint,
        "split": plan.split.split_name,
        "protocol": plan.protocol,
        "edges": plan.edges and list(plan.edges),
        "regions": [list(region) for region in plan.regions],
        "train_length": run.config.data.length,
    }
    keys = {
        ("", n): text | {"length": n, "stride": plan.stride_at(n)}
        for n in plan.lengths
    }
    retrieval = common | {
        "depths": list(_DEPTHS),
        "samples": self._settings.retrieval_samples,
        "seed": _RETRIEVAL_SEED,
    }
    return keys | {
        (task, n): retrieval | {"task": task, "length": n}
        for task in self._settings.retrieval
        for n in self._settings.lengths
    }

  def _compute(
      self,
      name: str,
      run: Run,
      params: Any,
      missing: Sequence[tuple[str, int]],
  ) -> Iterator[tuple[tuple[str, int], Any]]:
    """Yields the rows that are not cached, as soon as they are computed."""
    model = models.Transformer(run.config.model)
    lengths = [length for task, length in missing if not task]
    if lengths:
      for length, scores in score_lengths(
          model,
          params,
          self._plan,
          lengths=lengths,
          train_length=run.config.data.length,
          batch_size=self._batch_size,
          chunk=self._settings.chunk,
          step_of=self._step_of,
          label=name,
      ):
        yield ("", length), scores
    samples = self._settings.retrieval_samples
    num_texts = samples * len(_DEPTHS)
    for task, length in missing:
      if not task:
        continue
      at_length = model.at_length(length)
      step = self._step_of(at_length)
      batch_size = self._batch_size(step, at_length, params, length, num_texts)
      progress = Progress(num_texts * length, name)
      progress.line(
          f"{task}, length {length}: {num_texts} texts, {batch_size} at a time"
      )
      rows = score_retrieval(
          functools.partial(
              make_segment_scores(at_length, step), on_tokens=progress.advance
          ),
          params,
          self._tokenizer,
          task,
          length,
          _DEPTHS,
          samples,
          batch_size,
          self._settings.chunk,
          _RETRIEVAL_SEED,
      )
      progress.close()
      yield (task, length), rows
