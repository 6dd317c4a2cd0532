"""What one run says of the texts: read before and kept, or read now."""

import functools
import sys
from collections.abc import Sequence
from typing import Any

import jax

from dape_jax import __version__, models
from dape_jax.checkpoint.runs import Run, load_params
from dape_jax.config.dicts import experiment_to_dict
from dape_jax.evaluation.memory import BatchSize
from dape_jax.evaluation.perplexity import make_segment_scores, make_step
from dape_jax.evaluation.plan import Plan
from dape_jax.evaluation.progress import Progress
from dape_jax.evaluation.reading import read_lengths
from dape_jax.evaluation.row_files import RowFiles
from dape_jax.evaluation.tasks.retrieval import score_retrieval

# Of what is asked for: from the beginning to the end of the text.
_DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
_RETRIEVAL_SEED = 0


class RunReader:
  """Reads runs, one after the other; what is read is kept in files."""

  def __init__(
      self,
      plan: Plan,
      tokenizer: Any,
      files: RowFiles,
      *,
      batch_size: int,
      chunk: int,
  ):
    """Initialises.

    Args:
      plan: of the text.
      tokenizer: of the runs.
      files: for what is read.
      batch_size: texts read at a time; 0 is as many as fit in memory.
      chunk: tokens of a text read at a time.
    """
    self._plan = plan
    self._tokenizer = tokenizer
    self._files = files
    self._batch_size = BatchSize(batch_size, chunk)
    self._chunk = chunk
    # Runs that differ by their seed share the compiled programs.
    self._step_of = functools.cache(make_step)

  def read(
      self,
      name: str,
      run: Run,
      retrieval: Sequence[str],
      retrieval_lengths: Sequence[int],
      samples: int,
  ) -> tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]:
    """Returns the readings of each length, and the rows of retrieval.

    Args:
      name: of the run in messages.
      run: whose parameters are loaded if something is to be read.
      retrieval: names of tasks.
      retrieval_lengths: of their texts.
      samples: texts for each task, length and depth.

    Returns:
      {length: see `read_lengths`}, and rows as `score_retrieval` returns them.

    Raises:
      ConfigError: the checkpoint is damaged.
    """
    text_keys = {n: self._text_key(run, n) for n in self._plan.lengths}
    readings = {n: self._known(name, n, k) for n, k in text_keys.items()}
    retrieval_keys = {
        (task, n): {
            **_run_key(run),
            "tokenizer": self._tokenizer.name,
            "task": task,
            "length": n,
            "depths": list(_DEPTHS),
            "samples": samples,
            "seed": _RETRIEVAL_SEED,
            **self._chunk_key(run),
        }
        for task in retrieval
        for n in retrieval_lengths
    }
    rows = {
        (task, n): self._known(f"{name}: {task}", n, key)
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

  def _text_key(self, run: Run, length: int) -> dict[str, Any]:
    """Returns all that determines a reading."""
    plan = self._plan
    return {
        **_run_key(run),
        "text": plan.split.fingerprint,
        "split": plan.split.split_name,
        "tokenizer": self._tokenizer.name,
        "protocol": plan.protocol,
        "stride": plan.stride_at(length),
        "edges": plan.edges and list(plan.edges),
        "regions": [list(region) for region in plan.regions],
        "length": length,
        "train_length": run.config.data.length,
        **self._chunk_key(run),
    }

  def _chunk_key(self, run: Run) -> dict[str, Any]:
    """Returns the chunk for those whose numbers depend on it."""
    edge = run.config.model.encoding_options.get("edge")
    return {"chunk": self._chunk} if edge == "zero" else {}

  def _known(self, what: str, length: int, key: dict[str, Any]) -> Any | None:
    row = self._files.get(key)
    if row is not None:
      print(f"{what}: length {length}: read before", file=sys.stderr)
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


def _run_key(run: Run) -> dict[str, Any]:
  """Returns what tells a checkpoint's numbers from another's."""
  return {
      "dape_jax_version": __version__,
      "model": experiment_to_dict(run.config)["model"],
      "step": run.step,
      "params": run.checksum,
  }
