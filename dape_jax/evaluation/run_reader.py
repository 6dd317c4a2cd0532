"""Evaluates one run at a time; caches every row so that it can resume."""

import functools
import hashlib
import json
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from dape_jax import __version__, models
from dape_jax.checkpoint.runs import Run, load_params
from dape_jax.config.dicts import experiment_to_dict
from dape_jax.errors import ConfigError
from dape_jax.evaluation.memory import BatchSize
from dape_jax.evaluation.perplexity import make_segment_scores, make_step
from dape_jax.evaluation.progress import Progress
from dape_jax.evaluation.reading import Plan, read_lengths
from dape_jax.evaluation.tasks.retrieval import score_retrieval

# Depths of the needle, from the start to the end of the text.
_DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
_RETRIEVAL_SEED = 0


def _digest(value: Any) -> str:
  text = json.dumps(value, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


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


class RunReader:
  """Evaluates runs one after the other, with shared compiled programs."""

  def __init__(
      self,
      plan: Plan,
      tokenizer: Any,
      files: RowFiles,
      *,
      batch_size: int,
      chunk: int,
  ):
    """Initializes the reader.

    Args:
      plan: what to score.
      tokenizer: the runs' tokenizer.
      files: cache of results.
      batch_size: texts per batch; 0 means as many as fit in memory.
      chunk: tokens per step.
    """
    self._plan = plan
    self._tokenizer = tokenizer
    self._files = files
    self._batch_size = BatchSize(batch_size, chunk)
    self._chunk = chunk
    # Runs that differ only in their seed share compiled programs.
    self._step_of = functools.cache(make_step)

  def read(
      self,
      name: str,
      run: Run,
      retrieval: Sequence[str],
      retrieval_lengths: Sequence[int],
      samples: int,
  ) -> tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]:
    """Returns the nats at each length and the retrieval rows of a run.

    Args:
      name: of the run in messages.
      run: its parameters are loaded only if a row is not cached.
      retrieval: names of tasks.
      retrieval_lengths: lengths of their texts.
      samples: texts for each task, length and depth.

    Returns:
      {length: see `read_lengths`}, and rows as `score_retrieval` returns them.

    Raises:
      ConfigError: the checkpoint is damaged.
    """
    text_keys = {n: self._text_key(run, n) for n in self._plan.lengths}
    readings = {n: self._cached(name, n, k) for n, k in text_keys.items()}
    retrieval_keys = {
        (task, n): self._key(
            run,
            n,
            task=task,
            depths=list(_DEPTHS),
            samples=samples,
            seed=_RETRIEVAL_SEED,
        )
        for task in retrieval
        for n in retrieval_lengths
    }
    rows = {
        (task, n): self._cached(f"{name}: {task}", n, key)
        for (task, n), key in retrieval_keys.items()
    }
    model = models.Transformer(run.config.model)
    if None in [*readings.values(), *rows.values()]:
      params = jax.device_put(load_params(run), jax.local_devices()[0])
    lengths = [n for n, reading in readings.items() if reading is None]
    if lengths:
      for length, reading in read_lengths(
          model,
          params,
          self._plan,
          lengths=lengths,
          train_length=run.config.data.length,
          batch_size=self._batch_size,
          chunk=self._chunk,
          step_of=self._step_of,
          label=name,
      ):
        self._files.put(text_keys[length], reading)
        readings[length] = reading
    for (task, length), known in rows.items():
      if known is None:
        found = self._retrieve(name, model, params, task, length, samples)
        self._files.put(retrieval_keys[task, length], found)
        rows[task, length] = found
    return readings, [row for found in rows.values() for row in found]

  def _key(self, run: Run, length: int, **inputs: Any) -> dict[str, Any]:
    """Returns everything that determines a result."""
    key = {
        "dape_jax_version": __version__,
        "model": experiment_to_dict(run.config)["model"],
        "step": run.step,
        "params": run.checksum,
        "tokenizer": self._tokenizer.name,
        "length": length,
        **inputs,
    }
    # With this edge the numbers depend on where chunks end.
    if run.config.model.encoding_options.get("edge") == "zero":
      key["chunk"] = self._chunk
    return key

  def _text_key(self, run: Run, length: int) -> dict[str, Any]:
    plan = self._plan
    return self._key(
        run,
        length,
        text=plan.split.fingerprint,
        split=plan.split.split_name,
        protocol=plan.protocol,
        stride=plan.stride_at(length),
        edges=plan.edges and list(plan.edges),
        regions=[list(region) for region in plan.regions],
        train_length=run.config.data.length,
    )

  def _cached(self, what: str, length: int, key: dict[str, Any]) -> Any | None:
    row = self._files.get(key)
    if row is not None:
      print(f"{what}: length {length}: already evaluated", file=sys.stderr)
    return row

  def _retrieve(
      self,
      name: str,
      model: Any,
      params: Any,
      task: str,
      length: int,
      samples: int,
  ) -> list[dict[str, Any]]:
    at_length = model.at_length(length)
    step = self._step_of(at_length)
    num_texts = samples * len(_DEPTHS)
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
        [length],
        _DEPTHS,
        samples,
        batch_size,
        self._chunk,
        _RETRIEVAL_SEED,
    )
    progress.close()
    return rows
