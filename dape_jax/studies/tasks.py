r"""Trains and scores a grid of tasks x encodings x seeds; prints the tables.

  python -m dape_jax.studies.tasks --config=configs/che.py --output=runs/che \
      --tasks=even_pairs,bucket_sort --encodings=rope,dape_kerple_log \
      --seeds=0,1,2
  python -m dape_jax.studies.tasks --config=configs/length_tasks.py \
      --output=runs/copy --tasks=copy --times=1,2,4,8 --set=train.steps=3000
  python -m dape_jax.studies.tasks --score=runs/che/even_pairs/rope/seed0

Rerun the command to resume: finished runs are skipped. OUTPUT/table.md has the
papers' table (mean over the lengths beyond the training length, best and mean
over seeds) and one table per task, OUTPUT/results.json the numbers, and
OUTPUT/*.png one figure per task. --score scores one run of train.py.

Tasks: {TASKS}.
"""

import contextlib
import json
import pathlib
from typing import Any

from absl import flags

from dape_jax import __version__, cli
from dape_jax.config import overrides
from dape_jax.data import tasks
from dape_jax.errors import ConfigError

__doc__ = __doc__.replace("{TASKS}", ", ".join(tasks.TASKS))

_CONFIG = flags.DEFINE_string(
    "config",
    "configs/che.py",
    "Config file with the arguments task and encoding.",
)
_TASKS = flags.DEFINE_list("tasks", list(tasks.CHE_TASKS), "Names of tasks.")
_ENCODINGS = flags.DEFINE_list(
    "encodings", [], "Names of encodings; required for a grid, like --output."
)
_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds of the runs.")
_SET = flags.DEFINE_multi_string(
    "set",
    [],
    "SECTION.SETTING=VALUE changes a setting of all configs; repeatable.",
)
_LENGTHS = flags.DEFINE_string(
    "lengths", None, 'Lengths to score, "41-500" or "64,128"; default 41-500.'
)
_TIMES = flags.DEFINE_list(
    "times", [], "Lengths to score as multiples of the training length."
)
_SAMPLES = cli.define_whole_number("samples", 512, "Problems per length.", 1)
_BATCH_SIZE = cli.define_whole_number(
    "batch_size", 64, "Problems per batch.", 1
)
_OUTPUT = flags.DEFINE_string("output", None, "Folder of the runs and tables.")
_SCORE = flags.DEFINE_string("score", None, "Workdir of one run to score.")

# Settings with their own flags.
_GRID = {
    "seed": "--seeds",
    "data.task": "--tasks",
    "model.encoding": "--encodings",
}


def _whole(flag: str, item: str, least: int) -> int:
  with contextlib.suppress(ValueError):
    if (number := cli.whole_number(item)) >= least:
      return number
  raise ConfigError(
      f"--{flag}: {item!r} is not a whole number of at least {least}."
  )


def _lengths(train_length: int) -> list[int]:
  """Returns the problem lengths given by the flags."""
  if _TIMES.value:
    times = {_whole("times", x, 1) for x in _TIMES.value}
    return sorted(train_length * n for n in times)
  lengths = []
  for item in (_LENGTHS.value or "41-500").split(","):
    first, dash, last = item.partition("-")
    first = _whole("lengths", first, 1)
    lengths += range(
        first, _whole("lengths", last, first) + 1 if dash else first + 1
    )
  return sorted(set(lengths))


def _require_unique(flag: str, values: list) -> None:
  for value in values:
    if values.count(value) > 1:
      raise ConfigError(f"--{flag}: {value} is given twice.")


def _get_config(path: str, task: str, encoding: str) -> dict[str, Any]:
  """Returns a config file's settings with --set's changes."""
  config = overrides.load_config(f"{path}:task={task},encoding={encoding}")
  changes = []
  for change in _SET.value:
    name, equals, value = change.partition("=")
    if not equals:
      raise ConfigError(f"--set={change}: write SECTION.SETTING=VALUE.")
    if name in _GRID:
      raise ConfigError(f"--set={change}: use {_GRID[name]} instead.")
    changes.append(cli.Override(f"--set={change}", name, value))
  overrides.apply_overrides(config, changes)
  return config.to_dict()


def main(argv: list[str]) -> None:
  cli.refuse_arguments(argv)
  if _TIMES.value and _LENGTHS.value:
    raise ConfigError("give either --lengths or --times.")
  for name in _TASKS.value:
    tasks.make(name)
  seeds = [_whole("seeds", seed, 0) for seed in _SEEDS.value]
  _require_unique("tasks", _TASKS.value)
  _require_unique("encodings", _ENCODINGS.value)
  _require_unique("seeds", seeds)
  for name in ("config", "tasks", "encodings", "seeds", "set", "output"):
    if _SCORE.value and flags.FLAGS[name].present:
      raise ConfigError(f"--{name} is for a grid; --score is for one run.")
  if not _SCORE.value and not (_ENCODINGS.value and _OUTPUT.value):
    raise ConfigError("a grid needs --encodings=NAME,NAME and --output=DIR.")
  # Importing JAX takes seconds; report invalid flags first.
  from dape_jax.studies import grid, report

  scoring = grid.Scoring(_lengths, _SAMPLES.value, _BATCH_SIZE.value)
  if _SCORE.value:
    print(report.report(grid.score_run(_SCORE.value, scoring)))
    return
  output = pathlib.Path(_OUTPUT.value)
  results = grid.run_grid(
      lambda task, encoding: _get_config(_CONFIG.value, task, encoding),
      task_names=_TASKS.value,
      encodings=_ENCODINGS.value,
      seeds=seeds,
      scoring=scoring,
      output=output,
  )
  text = report.report(results)
  document = {
      "format": "dape_jax.task_grid",
      "version": 1,
      "dape_jax_version": __version__,
      "command": cli.command(),
      "results": results,
  }
  (output / "results.json").write_text(json.dumps(document, indent=1) + "\n")
  (output / "table.md").write_text(text)
  print(text, *report.write_figures(results, output), sep="\n")


if __name__ == "__main__":
  cli.run(main)
