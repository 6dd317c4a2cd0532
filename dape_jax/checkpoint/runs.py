"""Loads checkpoints for evaluation, with their tokenizer and corpus."""

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
  """A checkpoint and what is needed to evaluate it.

  Attributes:
    checkpoint: path as given.
    workdir: folder of the training run.
    config: the experiment's config.
    params: nested dict of float32 arrays; None until `load_params`.
    step: number of optimizer steps.
    fingerprint: training corpus fingerprints, separated by commas.
    checksum: checksum of the parameters, see `bit_checksum`.
  """

  checkpoint: str
  workdir: pathlib.Path
  config: ExperimentConfig
  params: Any = dataclasses.field(repr=False)
  step: int
  fingerprint: str
  checksum: int = 0


def find_run(path: str) -> Run:
  """Finds a checkpoint without loading its parameters.

  Args:
    path: a workdir, its `checkpoints` folder, or one step in it.

  Raises:
    ConfigError: no finished checkpoint exists, or its metadata is damaged.
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
  """Loads the parameters of a run and verifies their checksum.

  Raises:
    ConfigError: the checkpoint is damaged.
  """
  _, params, step = checkpoint.load_for_evaluation(run.checkpoint)
  if step != run.step:
    raise ConfigError(
        f"{run.checkpoint}: step {step} was saved after step {run.step} was"
        " selected; name the step, as in checkpoints/STEP."
    )
  if int(bit_checksum(params)) != run.checksum:
    raise ConfigError(
        f"{run.checkpoint}: the parameters changed during evaluation, probably"
        " by another training run; rerun the command after it ends."
    )
  return params


def load_run(path: str) -> Run:
  """Returns a checkpoint with its parameters; see `find_run`."""
  run = find_run(path)
  return dataclasses.replace(run, params=load_params(run))


def check_reads_text(run: Run, instead: str) -> None:
  """Checks that a run was trained on text.

  Raises:
    ConfigError: it was trained on a generated task; the message ends with
      `instead`.
  """
  if isinstance(run.config.data, TaskConfig):
    raise ConfigError(
        f"{run.checkpoint} was trained on the task {run.config.data.task};"
        f" {instead}."
    )


def warn_of_edge(run: Run, name: str) -> None:
  """Warns on stderr if results depend on chunk boundaries."""
  if run.config.model.encoding_options.get("edge") == "zero":
    print(
        f'{name}: edge="zero" of DAPE V2 is not prefix-invariant; with a cache,'
        " the last row of each chunk differs from training.",
        file=sys.stderr,
    )


def run_names(runs: Sequence[Run]) -> list[str]:
  """Returns the shortest unique path suffix of each run.

  The name "crop" is reserved for the baseline. Unprintable characters become
  "?".

  Raises:
    ConfigError: the same checkpoint is given twice.
  """
  workdirs = collections.Counter(run.workdir for run in runs)
  parts = []
  for run in runs:
    *parents, name = run.workdir.parts
    if workdirs[run.workdir] > 1:
      name += f"@{run.step}"
    parts.append(
        tuple(
            "".join(c if c.isprintable() else "?" for c in part)
            for part in (*parents, name)
        )
    )
  for depth in range(1, max(map(len, parts)) + 1):
    names = ["/".join(p[-depth:]) for p in parts]
    if len(set(names)) == len(runs) and "crop" not in names:
      return names
  twice = collections.Counter(parts).most_common(1)[0][0]
  raise ConfigError(f"--compare: {'/'.join(twice[1:])} is given twice.")


def load_tokenizer(run: Run) -> data.Tokenizer:
  """Returns the tokenizer of a run trained on text.

  Raises:
    ConfigError: it is missing, or differs from the one used in training.
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
    runs: at least one.
    data_dir: folder of built-in corpora; "" means the first run's setting.
    source: as in config.data.source, or the folder's new location; "" means the
      first source of the first run.

  Raises:
    ConfigError: the runs' corpora differ, or the corpus found differs from
      theirs, so that its test split may contain their training tokens.
  """
  first = runs[0]
  for run in runs[1:]:
    if run.fingerprint != first.fingerprint:
      raise ConfigError(
          f"{first.checkpoint} was trained on corpus {first.fingerprint},"
          f" {run.checkpoint} on {run.fingerprint}: their results are"
          " not comparable; compare runs of one corpus."
      )
  settings = first.config.data
  name, tokenizer = source or settings.source.split(",")[0], settings.tokenizer
  if not tokenizer and "/" not in name:
    # A built-in corpus mixed with folders uses the tokenizer of the folders.
    tokenizer = load_tokenizer(first).location
  corpus = data.load_corpus(name, tokenizer, data_dir or settings.dir)
  trained_on = first.fingerprint.split(",")
  if corpus.fingerprint not in (trained_on if source else trained_on[:1]):
    raise ConfigError(
        f"{first.checkpoint} was trained on corpus {first.fingerprint}, the one"
        f" found is {corpus.fingerprint} (package versions affect the corpus):"
        " pass the training corpus as --source=FOLDER."
    )
  return corpus
