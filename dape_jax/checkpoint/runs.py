"""Checkpoints under evaluation: loading them, and comparing like with like."""

import collections
import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from dape_jax import data
from dape_jax.checkpoint import store as checkpoint
from dape_jax.checkpoint.paths import step_folder
from dape_jax.checkpoint.state import bit_checksum
from dape_jax.config import ExperimentConfig, TaskConfig
from dape_jax.config.dicts import experiment_from_dict
from dape_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Run:
  """A checkpoint with what is needed to evaluate it.

  Attributes:
    checkpoint: path that was asked for.
    workdir: folder of the training run.
    config: the experiment's.
    params: nested dict of float32 arrays; None until `load_params`.
    step: optimizer steps of the checkpoint.
    fingerprint: of the corpus it was trained on, or of each, with commas.
    checksum: of the parameters' bits.
  """

  checkpoint: str
  workdir: pathlib.Path
  config: ExperimentConfig
  params: Any = dataclasses.field(repr=False)
  step: int
  fingerprint: str
  checksum: int = 0


def find_run(path: str) -> Run:
  """Returns a checkpoint without its parameters.

  Args:
    path: workdir, its `checkpoints` folder, or one step in there.

  Raises:
    ConfigError: there is no finished checkpoint, or its metadata is damaged.
  """
  folder = step_folder(path)
  metadata = checkpoint.load_metadata(folder)
  above = folder.parent
  return Run(
      checkpoint=path,
      workdir=above.parent if above.name == "checkpoints" else above,
      config=experiment_from_dict(metadata["config"]),
      params=None,
      step=int(folder.name),
      fingerprint=str(metadata["data_state"].get("fingerprint")),
      checksum=int(metadata["checksums"].get("params", 0)),
  )


def load_params(run: Run) -> Any:
  """Returns the parameters of a run, which fit its checksum.

  Raises:
    ConfigError: the checkpoint is damaged.
  """
  _, params, step = checkpoint.load_for_evaluation(run.checkpoint)
  if step != run.step:
    raise ConfigError(
        f"{run.checkpoint} has got step {step} since step {run.step} was looked"
        " up: name the step, as in checkpoints/STEP."
    )
  if int(bit_checksum(params)) != run.checksum:
    raise ConfigError(
        f"{run.checkpoint} has got other parameters since it was looked up, as"
        " of another training: start again when that has ended."
    )
  return params


def load_run(path: str) -> Run:
  """Returns a checkpoint with its parameters; see `find_run`."""
  run = find_run(path)
  return dataclasses.replace(run, params=load_params(run))


def check_reads_text(run: Run, instead: str) -> None:
  """Checks that a run was trained on text.

  Raises:
    ConfigError: it was on a generated task; the message ends with `instead`.
  """
  if isinstance(run.config.data, TaskConfig):
    raise ConfigError(
        f"{run.checkpoint} was trained on the task {run.config.data.task};"
        f" {instead}."
    )


def warn_of_edge(run: Run, name: str) -> None:
  """Says on stderr if what a chunk is read as depends on where it ends."""
  if run.config.model.encoding_options.get("edge") == "zero":
    print(
        f'{name}: edge="zero" of DAPE V2 is not prefix-invariant; read through a'
        " cache, rows at the end of a chunk differ from training.",
        file=sys.stderr,
    )


def run_names(runs: Sequence[Run]) -> list[str]:
  """Returns for each run the shortest end of its path that is unique.

  None is "crop", which is the baseline. What cannot be printed is "?".

  Raises:
    ConfigError: the same checkpoint is there twice.
  """
  workdirs = collections.Counter(run.workdir for run in runs)
  parts = []
  for run in runs:
    *parents, name = run.workdir.parts
    if workdirs[run.workdir] > 1:
      name += f"@{run.step}"
    parts.append(tuple(_printable(part) for part in (*parents, name)))
  for depth in range(1, max(map(len, parts)) + 1):
    names = ["/".join(p[-depth:]) for p in parts]
    if len(set(names)) == len(runs) and "crop" not in names:
      return names
  twice = collections.Counter(parts).most_common(1)[0][0]
  raise ConfigError(f"--compare: {'/'.join(twice[1:])} is given twice.")


def _printable(name: str) -> str:
  return "".join(c if c.isprintable() else "?" for c in name)


def load_tokenizer(run: Run) -> data.Tokenizer:
  """Returns the tokenizer of a run, which was trained on text.

  Raises:
    ConfigError: it is not there, or is not that of the training.
  """
  settings = run.config.data
  return data.load_tokenizer(
      settings.source, settings.tokenizer, run.fingerprint.split(",")
  )


def load_corpus_of(
    runs: Sequence[Run], data_dir: str, source: str = ""
) -> data.Corpus:
  """Returns a corpus that all runs were trained on.

  Args:
    runs: at least one; those of several sources were trained on all of them.
    data_dir: folder of built-in corpora; "" means the first run's setting.
    source: as in config.data.source, or where that folder is now; "" is the
      first of the first run.

  Raises:
    ConfigError: the runs' corpora differ, or the present one differs: test
      tokens would differ, or have been trained on.
  """
  first = runs[0]
  for run in runs[1:]:
    if run.fingerprint != first.fingerprint:
      raise ConfigError(
          f"{first.checkpoint} was trained on corpus {first.fingerprint},"
          f" {run.checkpoint} on {run.fingerprint}: their results do not"
          " compare; compare runs of one corpus."
      )
  settings = first.config.data
  name, tokenizer = source or settings.source.split(",")[0], settings.tokenizer
  if not tokenizer and "/" not in name:
    # A built-in corpus beside folders has the tokenizer of those.
    tokenizer = load_tokenizer(first).location
  corpus = data.load_corpus(name, tokenizer, data_dir or settings.dir)
  trained_on = first.fingerprint.split(",")
  if corpus.fingerprint not in (trained_on if source else trained_on[:1]):
    raise ConfigError(
        f"{first.checkpoint} was trained on corpus {first.fingerprint}, the one"
        f" here is {corpus.fingerprint} (other package versions make another"
        " corpus): give --source=FOLDER of the one it was trained on."
    )
  return corpus
