r"""Measures how well a trained model extrapolates beyond its training length.

Scores the same tokens at every length; only the context grows. The crop
baseline cuts the context to the training length. Confidence intervals and tests
are over documents. A checkpoint is the --workdir of a training run (its latest
step) or one step in its checkpoints folder. Compared runs must share a corpus,
or with --text a tokenizer. Rerun the command to resume an interrupted
evaluation.

  python eval.py --checkpoint=runs/my_run --lengths=128,256,...,4096
  python eval.py --compare runs/rope runs/dape --output=runs/comparison \
      --lengths=128,256,...,4096
  python eval.py --checkpoint=runs/my_run --lengths=512,...,131072 \
      --text=book.txt,other.txt --retrieval=passkey,needle_single
"""

import pathlib
import sys

from absl import flags

from dape_jax import cli
from dape_jax.errors import ConfigError
from dape_jax.evaluation import protocols, regions

_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "Run to evaluate.")
_COMPARE = flags.DEFINE_string(
    "compare", None, "Runs to compare, separated by spaces."
)
_LENGTHS = flags.DEFINE_string(
    "lengths", None, 'Context lengths, comma-separated; "..." means doubling.'
)
_PROTOCOL = flags.DEFINE_enum(
    "protocol",
    "last256",
    list(protocols.PROTOCOLS),
    "Tokens to score in each region: the last 256; all, in non-overlapping"
    " windows; all, in sliding windows; or all, in one pass, by position.",
)
_TEXT = flags.DEFINE_list(
    "text", [], "Files to evaluate instead of the run's corpus."
)
_SPLIT = flags.DEFINE_enum(
    "split", "test", ["train", "validation", "test"], "Split of the corpus."
)
_RETRIEVAL = flags.DEFINE_list(
    "retrieval", [], "Retrieval tasks to run at each length, such as passkey."
)
_OUTPUT = flags.DEFINE_string(
    "output",
    None,
    "Output folder; default: evaluation/SPLIT_PROTOCOL_stepN in the workdir.",
)
cli.define_whole_number(
    "stride",
    None,
    "Stride of --protocol=sliding; default: a quarter of each length.",
    1,
)
cli.define_whole_number(
    "regions", 32, "Maximum number of regions at the longest length.", 1
)
flags.DEFINE_string(
    "data_dir", "", "Folder of built-in corpora; default: as in training."
)
flags.DEFINE_string(
    "source",
    "",
    "Training source to evaluate, or its new location; default: the first"
    " source of the run.",
)
cli.define_whole_number(
    "retrieval_samples", 20, "Texts per retrieval task, length and depth.", 1
)
cli.define_whole_number(
    "batch_size", 0, "Batch size; 0 picks the largest that fits in memory.", 0
)
cli.define_whole_number("chunk", 512, "Tokens per forward pass.", 1)
# Flags with the same names as their fields in `extrapolation.Settings`.
_SETTINGS = (
    *("protocol", "stride", "split", "data_dir", "source", "retrieval"),
    *("retrieval_samples", "batch_size", "chunk"),
)


def main(argv: list[str]) -> None:
  if (_CHECKPOINT.value is None) == (_COMPARE.value is None):
    raise ConfigError("give either --checkpoint=DIR or --compare DIR DIR ...")
  if _CHECKPOINT.value is not None and argv[1:]:
    raise ConfigError(f"{argv[1]!r}: several runs need --compare DIR DIR ...")
  if _COMPARE.value is not None and not (argv[1:] and _OUTPUT.value):
    raise ConfigError("--compare needs two or more folders and --output=DIR.")
  for name in "text", "retrieval":
    if flags.FLAGS[name].present and not flags.FLAGS[name].value:
      raise ConfigError(
          f"--{name} is empty; give one or more values, or leave it out."
      )
  for name in "split", "source", "data_dir":
    if _TEXT.value and flags.FLAGS[name].present:
      raise ConfigError(f"--{name} has no effect with --text; leave it out.")
  if flags.FLAGS["retrieval_samples"].present and not _RETRIEVAL.value:
    raise ConfigError("--retrieval_samples needs --retrieval=TASK,TASK.")
  if _LENGTHS.value is None:
    raise ConfigError("give the context lengths: --lengths=128,256,...,4096.")
  lengths = regions.parse_lengths(_LENGTHS.value)
  # JAX takes seconds to import; report invalid flags first.
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
  # Fail before hours of work if the results cannot be written.
  report.make_folder(output)
  report.make_folder(output / "rows")
  settings = extrapolation.Settings(
      lengths=lengths,
      max_regions=flags.FLAGS.regions,
      texts=_TEXT.value,
      **{name: flags.FLAGS[name].value for name in _SETTINGS},
  )
  results = extrapolation.evaluate_runs(found, settings, output)
  try:
    paths = report.write(results, output)
  except OSError as error:
    raise ConfigError(
        f"--output={output}: {error.strerror}; fix this and rerun the command"
        " to write the report from the rows already evaluated."
    ) from error
  print(report.table(results), *paths, sep="\n")


if __name__ == "__main__":
  # Print "?" for characters that the terminal cannot encode.
  sys.stdout.reconfigure(errors="replace")
  cli.run(main)
