r"""Measures how far a trained model reads beyond its training length.

The same tokens are scored at every length; only the context grows. The crop
baseline cuts the context to the training length. Prints a table, writes JSON
and PNG. A checkpoint is the --workdir of a training run (the latest step) or a
step in its checkpoints folder; compared runs must be of the same corpus.

  python eval.py --checkpoint=runs/demo --lengths=128,256,...,4096
  python eval.py --compare runs/rope runs/dape --output=runs/comparison \
      --lengths=128,256,...,4096
"""

import pathlib

from absl import flags

from dape_jax import cli
from dape_jax.errors import ConfigError
from dape_jax.evaluation import protocols

_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "The run to evaluate.")
_COMPARE = flags.DEFINE_string(
    "compare", None, "First of several runs; the others follow it."
)
_LENGTHS = flags.DEFINE_string(
    "lengths", None, 'Comma list of tokens of context; "..." means doubling.'
)
_PROTOCOL = flags.DEFINE_enum(
    "protocol",
    "last256",
    list(protocols.PROTOCOLS),
    "Tokens scored in each region: its last 256 or all.",
)
_REGIONS = flags.DEFINE_integer(
    "regions", 32, "At most so many regions of the longest length.", 1
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 4, "Texts read at a time.", 1)
_CHUNK = flags.DEFINE_integer("chunk", 512, "Tokens read at a time.", 1)
_SPLIT = flags.DEFINE_enum(
    "split", "test", ["train", "validation", "test"], "Split of the corpus."
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir", "", "Folder of the prepared data; empty: as in training."
)
_OUTPUT = flags.DEFINE_string(
    "output", None, "Folder of results; default: evaluation in the workdir."
)


def main(argv: list[str]) -> None:
  if (_CHECKPOINT.value is None) == (_COMPARE.value is None):
    raise ConfigError("give either --checkpoint=DIR or --compare DIR DIR ...")
  if _CHECKPOINT.value is not None and argv[1:]:
    raise ConfigError(f"{argv[1]!r}: several runs need --compare DIR DIR ...")
  if _COMPARE.value is not None and not (argv[1:] and _OUTPUT.value):
    raise ConfigError("--compare needs two folders or more, and --output=DIR.")
  lengths = protocols.parse_lengths(_LENGTHS.value or "")
  # JAX takes seconds to start; a wrong flag is told at once.
  from dape_jax.evaluation import report, runs

  folders = [_CHECKPOINT.value or _COMPARE.value, *argv[1:]]
  loaded = [runs.load_run(folder) for folder in folders]
  output = pathlib.Path(_OUTPUT.value or loaded[0].workdir / "evaluation")
  report.make_folder(output)
  results = runs.evaluate_runs(
      loaded,
      lengths=lengths,
      protocol=_PROTOCOL.value,
      split=_SPLIT.value,
      data_dir=_DATA_DIR.value,
      max_regions=_REGIONS.value,
      batch_size=_BATCH_SIZE.value,
      chunk=_CHUNK.value,
  )
  print(report.table(results), *report.write(results, output), sep="\n")


if __name__ == "__main__":
  cli.run(main)
