r"""Measures how far a trained model reads beyond its training length.

The same tokens are scored at every length; only the context grows. The crop
baseline cuts the context to the training length. Intervals and tests are over
documents. A checkpoint is the --workdir of a training run (the latest step) or
a step in its checkpoints folder; compared runs must be of the same corpus. The
same command goes on where it stopped.

  python eval.py --checkpoint=runs/demo --lengths=128,256,...,4096
  python eval.py --compare runs/rope runs/dape --output=runs/comparison \
      --lengths=128,256,...,4096
  python eval.py --checkpoint=runs/demo --lengths=512,...,131072 \
      --text=book.txt,other.txt --retrieval=passkey,needle_single
"""

import pathlib
import sys

from absl import flags

from dape_jax import cli
from dape_jax.errors import ConfigError
from dape_jax.evaluation import protocols, regions

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
    "Tokens scored in each region: its last 256, or all: in pieces, in"
    " overlapping windows, or in one reading of the longest length.",
)
_STRIDE = cli.define_whole_number(
    "stride",
    None,
    "Of --protocol=sliding; default: a quarter of the length.",
    1,
)
_REGIONS = cli.define_whole_number(
    "regions", 32, "At most so many regions of the longest length.", 1
)
_TEXT = flags.DEFINE_list(
    "text", [], "Files to read, one document each; default: the run's corpus."
)
_SPLIT = flags.DEFINE_enum(
    "split", "test", ["train", "validation", "test"], "Split of the corpus."
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir", "", "Folder of built-in corpora; empty: as in training."
)
_SOURCE = flags.DEFINE_string(
    "source",
    "",
    "Corpus to read of those of the training, or where its folder is now;"
    " empty: the first.",
)
_RETRIEVAL = flags.DEFINE_list(
    "retrieval", [], "Retrieval tasks at the same lengths, such as passkey."
)
_RETRIEVAL_SAMPLES = cli.define_whole_number(
    "retrieval_samples", 20, "Texts for each task, length and depth.", 1
)
_BATCH_SIZE = cli.define_whole_number(
    "batch_size", 0, "Texts read at a time; 0: as many as fit in memory.", 0
)
_CHUNK = cli.define_whole_number("chunk", 512, "Tokens read at a time.", 1)
_OUTPUT = flags.DEFINE_string(
    "output",
    None,
    "Folder of results; default: evaluation/SPLIT_PROTOCOL_stepN in the workdir.",
)


def main(argv: list[str]) -> None:
  if (_CHECKPOINT.value is None) == (_COMPARE.value is None):
    raise ConfigError("give either --checkpoint=DIR or --compare DIR DIR ...")
  if _CHECKPOINT.value is not None and argv[1:]:
    raise ConfigError(f"{argv[1]!r}: several runs need --compare DIR DIR ...")
  if _COMPARE.value is not None and not (argv[1:] and _OUTPUT.value):
    raise ConfigError("--compare needs two folders or more, and --output=DIR.")
  for name in "text", "retrieval":
    if flags.FLAGS[name].present and not flags.FLAGS[name].value:
      raise ConfigError(
          f"--{name} is empty: name one or more, or leave it out."
      )
  for name in "split", "source", "data_dir":
    if _TEXT.value and flags.FLAGS[name].present:
      raise ConfigError(f"--{name} is of the corpus, which --text replaces.")
  if flags.FLAGS["retrieval_samples"].present and not _RETRIEVAL.value:
    raise ConfigError("--retrieval_samples needs --retrieval=TASK,TASK.")
  if _LENGTHS.value is None:
    raise ConfigError("give the lengths to read: --lengths=128,256,...,4096.")
  lengths = regions.parse_lengths(_LENGTHS.value)
  # JAX takes seconds to start; a wrong flag is told at once.
  from dape_jax.checkpoint import runs
  from dape_jax.checkpoint.paths import is_remote
  from dape_jax.evaluation import extrapolation, report

  found = [
      runs.find_run(folder)
      for folder in (_CHECKPOINT.value or _COMPARE.value, *argv[1:])
  ]
  what = "text" if _TEXT.value else _SPLIT.value
  name = f"{what}_{_PROTOCOL.value}_step{found[0].step}"
  folder = found[0].workdir / "evaluation" / name
  if not _OUTPUT.value and is_remote(folder):
    raise ConfigError(
        f"{found[0].workdir} is not local: give --output, a local folder for the"
        " report."
    )
  output = pathlib.Path(_OUTPUT.value or folder)
  # Before hours of work are spent on what cannot be kept.
  report.make_folder(output)
  report.make_folder(output / "rows")
  settings = extrapolation.Settings(
      lengths=lengths,
      protocol=_PROTOCOL.value,
      stride=_STRIDE.value,
      max_regions=_REGIONS.value,
      split=_SPLIT.value,
      data_dir=_DATA_DIR.value,
      source=_SOURCE.value,
      texts=_TEXT.value,
      retrieval=_RETRIEVAL.value,
      retrieval_samples=_RETRIEVAL_SAMPLES.value,
      batch_size=_BATCH_SIZE.value,
      chunk=_CHUNK.value,
  )
  results = extrapolation.evaluate_runs(found, settings, output)
  try:
    paths = report.write(results, output)
  except OSError as error:
    raise ConfigError(
        f"--output={output}: {error.strerror}; the same command makes the"
        " report from what was read, once it can be written."
    ) from error
  print(report.table(results), *paths, sep="\n")


if __name__ == "__main__":
  # What the terminal has no letter for is shown as "?".
  sys.stdout.reconfigure(errors="replace")
  cli.run(main)
