"""Checkpoints under evaluation: loading them, and comparing like with like."""

import collections
import dataclasses
import pathlib
import resource
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import dape_jax
from dape_jax import data, models
from dape_jax.config import ExperimentConfig
from dape_jax.errors import ConfigError
from dape_jax.evaluation import protocols
from dape_jax.evaluation.extrapolation import evaluate
from dape_jax.models.layer_encodings import check_positions
from dape_jax.training import checkpoint
from dape_jax.training.checkpoint_paths import step_folder


@dataclasses.dataclass(frozen=True)
class Run:
  """A checkpoint with what is needed to evaluate it.

  Attributes:
    checkpoint: path that was asked for.
    workdir: folder of the training run.
    config: the experiment's.
    params: nested dict of float32 arrays.
    step: optimizer steps of the checkpoint.
    fingerprint: of the corpus it was trained on.
  """

  checkpoint: str
  workdir: pathlib.Path
  config: ExperimentConfig
  params: Any = dataclasses.field(repr=False)
  step: int
  fingerprint: str


def load_run(path: str) -> Run:
  """Loads a checkpoint.

  Args:
    path: workdir, its `checkpoints` folder, or one step in there.

  Raises:
    ConfigError: there is no finished checkpoint, or it is damaged.
  """
  folder = step_folder(path)
  config, params, step = checkpoint.load_for_evaluation(folder)
  metadata = checkpoint.load_metadata(folder)
  above = folder.parent
  return Run(
      checkpoint=path,
      workdir=above.parent if above.name == "checkpoints" else above,
      config=config,
      params=params,
      step=step,
      fingerprint=str(metadata["data_state"].get("fingerprint")),
  )


def run_names(runs: Sequence[Run]) -> list[str]:
  """Returns for each run the shortest end of its path that is unique.

  Raises:
    ConfigError: the same checkpoint is there twice.
  """
  workdirs = collections.Counter(run.workdir for run in runs)
  parts = []
  for run in runs:
    *parents, name = run.workdir.parts
    if workdirs[run.workdir] > 1:
      name += f"@{run.step}"
    parts.append((*parents, name))
  for depth in range(1, max(map(len, parts)) + 1):
    names = ["/".join(p[-depth:]) for p in parts]
    if len(set(names)) == len(runs):
      return names
  twice = collections.Counter(parts).most_common(1)[0][0]
  raise ConfigError(f"--compare: {'/'.join(twice[1:])} is given twice.")


def load_corpus_of(runs: Sequence[Run], data_dir: str) -> data.Corpus:
  """Returns the corpus that all runs were trained on.

  Args:
    runs: at least one.
    data_dir: folder of the prepared data; "" means the first run's setting.

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
  corpus = data.load_corpus(
      source=settings.source,
      tokenizer=settings.tokenizer,
      data_dir=data_dir or settings.dir,
  )
  if corpus.fingerprint != first.fingerprint:
    raise ConfigError(
        f"{first.checkpoint} was trained on corpus {first.fingerprint}, the one"
        f" here is {corpus.fingerprint} (other package versions make another"
        " corpus): give --data_dir of the one it was trained on."
    )
  return corpus


def evaluate_runs(
    runs: Sequence[Run],
    *,
    lengths: Sequence[int],
    protocol: str,
    split: str,
    data_dir: str,
    max_regions: int,
    batch_size: int,
    chunk: int,
) -> dict[str, Any]:
  """Evaluates runs on the same tokens.

  Args:
    runs: from `load_run`.
    lengths: inputs per reading, increasing.
    protocol: a name in `protocols.PROTOCOLS`.
    split: of the corpus.
    data_dir: see `load_corpus_of`.
    max_regions, batch_size, chunk: see `extrapolation.evaluate`.

  Returns:
    Results in the schema that `report` documents.

  Raises:
    ConfigError: see `load_corpus_of` and `extrapolation.evaluate`.
  """
  protocols.protocol(protocol)
  names = run_names(runs)
  for name, run in zip(names, runs, strict=True):
    longest = max(lengths)
    check_positions(run.config.model, longest, f"--lengths={longest} of {name}")
  corpus = load_corpus_of(runs, data_dir)
  results = []
  for name, run in zip(names, runs, strict=True):
    train_length = run.config.data.length
    if run.config.model.encoding_options.get("edge") == "zero":
      print(
          f'{name}: edge="zero" of DAPE V2 is not prefix-invariant; read through'
          " a cache, rows at the end of a chunk differ from training.",
          file=sys.stderr,
      )
    rows = evaluate(
        models.Transformer(run.config.model),
        run.params,
        corpus.split(split),
        corpus.tokenizer,
        lengths=lengths,
        train_length=train_length,
        protocol=protocol,
        max_regions=max_regions,
        batch_size=batch_size,
        chunk=chunk,
        label=name,
    )
    results.append(
        {
            "name": name,
            "checkpoint": run.checkpoint,
            "encoding": run.config.model.encoding,
            "train_length": train_length,
            "step": run.step,
            "rows": rows,
        }
    )
  # Linux counts in kilobytes, macOS in bytes.
  unit = 1 if sys.platform == "darwin" else 1024
  return {
      "dape_jax_version": dape_jax.__version__,
      "command": shlex.join(sys.argv),
      "corpus_fingerprint": corpus.fingerprint,
      "source": runs[0].config.data.source,
      "tokenizer": corpus.tokenizer.name,
      "split": split,
      "protocol": protocol,
      "lengths": list(lengths),
      "peak_rss_bytes": (
          resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
      ),
      "runs": results,
  }
