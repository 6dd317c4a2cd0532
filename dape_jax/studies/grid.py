"""A grid of runs on generated tasks: tasks x encodings x seeds.

The workdir of a run is OUTPUT/task/encoding/seedN. It has accuracy.json once
the run is scored. Finished runs are skipped.
"""

import dataclasses
import itertools
import json
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax

from dape_jax.checkpoint import store as checkpoint
from dape_jax.checkpoint.paths import step_folder
from dape_jax.config import ExperimentConfig, TaskConfig
from dape_jax.config.dicts import experiment_from_dict, experiment_to_dict
from dape_jax.data import tasks
from dape_jax.errors import ConfigError
from dape_jax.evaluation.tasks.accuracy import longest_row, task_accuracy
from dape_jax.models import Transformer
from dape_jax.models.layer_encodings import check_positions
from dape_jax.training import loop

FILE = "accuracy.json"


@dataclasses.dataclass(frozen=True)
class Scoring:
  """How runs are scored.

  Attributes:
    lengths: function from the training length to the problem lengths.
    samples: problems per length.
    batch_size: problems per batch.
  """

  lengths: Callable[[int], Sequence[int]]
  samples: int
  batch_size: int


def _longest_rows(config: ExperimentConfig, scoring: Scoring) -> dict[str, int]:
  """Returns {task to score: tokens of its longest row}.

  The tasks are the config's task and its variants.

  Raises:
    ConfigError: the model or a task does not support the lengths.
  """
  lengths = scoring.lengths(config.data.length)
  name = config.data.task
  rows = {
      scored_on: longest_row(scored_on, lengths, config.train.max_position)
      for scored_on in (name, *tasks.make(name).variants)
  }
  longest = max(rows.values())
  what = f"--lengths: rows of {longest} tokens of {name}"
  check_positions(config.model, longest, what)
  return rows


def score_run(workdir: str | os.PathLike[str], scoring: Scoring):
  """Returns the accuracies of a trained run, one dict per scored task.

  The tasks are the one it was trained on and its variants. A dict has task,
  scored_on, encoding, form ("encoder" or "decoder"), seed, step, train_length,
  max_position, chance, chance_by_place and rows, see `task_accuracy`.

  Raises:
    ConfigError: the run has no finished checkpoint, was trained on text, or the
      model or a task does not support the lengths.
  """
  config, params, step = checkpoint.load_for_evaluation(step_folder(workdir))
  data = config.data
  if not isinstance(data, TaskConfig):
    raise ConfigError(
        f"{workdir} was trained on text; evaluate it with eval.py"
        f" --checkpoint={workdir}."
    )
  lengths = list(scoring.lengths(data.length))
  results = []
  for name, longest in _longest_rows(config, scoring).items():
    task = tasks.make(name)
    rows = task_accuracy(
        Transformer(config.model).at_length(longest),
        params,
        name,
        lengths,
        samples=scoring.samples,
        batch_size=scoring.batch_size,
        max_position=config.train.max_position,
    )
    results.append(
        {
            "task": data.task,
            "scored_on": name,
            "encoding": config.model.encoding,
            "form": "decoder" if config.model.causal else "encoder",
            "seed": config.seed,
            "step": step,
            "train_length": data.length,
            "max_position": config.train.max_position,
            "chance": task.chance,
            "chance_by_place": task.chance_by_place,
            "rows": rows,
        }
    )
  return results


def run_grid(
    make_config: Callable[[str, str], dict[str, Any]],
    *,
    task_names: Sequence[str],
    encodings: Sequence[str],
    seeds: Sequence[int],
    scoring: Scoring,
    output: pathlib.Path,
) -> list[dict[str, Any]]:
  """Trains and scores unfinished runs; returns the results of all runs.

  Args:
    make_config: (task, encoding) -> settings of `experiment_from_dict`.
    task_names, encodings, seeds: the grid; seeds are the outermost loop, so
      that an unfinished grid has complete seeds.
    scoring: how runs are scored.
    output: folder of the runs.

  Returns:
    The dicts of `score_run`.

  Raises:
    ConfigError: a setting is invalid (raised before any training), the folder
      has runs with other settings, or a run's loss is not finite.
  """
  configs = {
      (task, name): experiment_from_dict(make_config(task, name))
      for task in task_names
      for name in encodings
  }
  for config in configs.values():
    _longest_rows(config, scoring)
  cells = {
      cell: dataclasses.replace(configs[cell[1:]], seed=cell[0])
      for cell in itertools.product(seeds, task_names, encodings)
  }
  results = []
  for number, ((seed, task, name), config) in enumerate(cells.items(), 1):
    workdir = output / task / name / f"seed{seed}"
    cell = _stored(workdir, config, scoring)
    if cell is None:
      title = f"[{number}/{len(cells)}] {task}, {name}, seed {seed}"
      print(title, file=sys.stderr)
      cell = _train_and_score(config, workdir, scoring)
    results += cell
  return results


def _key(config: ExperimentConfig, scoring: Scoring) -> dict[str, Any]:
  """Returns the settings that a stored result must match."""
  key = {
      "config": experiment_to_dict(config),
      "lengths": list(scoring.lengths(config.data.length)),
      "samples": scoring.samples,
  }
  return json.loads(json.dumps(key))


def _stored(workdir, config, scoring) -> list[dict[str, Any]] | None:
  """Returns the results in a workdir, None if missing, damaged or outdated."""
  path = workdir / FILE
  try:
    stored = json.loads(path.read_text())
    if stored["made_with"] == _key(config, scoring):
      return stored["results"]
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (ValueError, KeyError, TypeError):
    print(f"{path} is damaged; scoring the run again.", file=sys.stderr)
  return None


def _train_and_score(config, workdir, scoring) -> list[dict[str, Any]]:
  try:
    loop.train(config, workdir)
  except (ConfigError, loop.FailedRunError) as error:
    # The grid's flag has another name.
    message = str(error).replace("--workdir", "--output")
    raise ConfigError(f"{workdir}: {message}") from error
  results = score_run(workdir, scoring)
  stored = {"made_with": _key(config, scoring), "results": results}
  partial = workdir / f"{FILE}.partial"
  partial.write_text(json.dumps(stored, indent=1) + "\n")
  os.replace(partial, workdir / FILE)
  # One process trains hundreds of runs; free their compiled programs.
  jax.clear_caches()
  return results
