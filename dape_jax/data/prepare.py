r"""Prepares text for training: tokenizes documents and writes shards.

  python -m dape_jax.data.prepare --output=data/mine --train='books/*.jsonl.zst'
  python -m dape_jax.data.prepare --output=data/mine --tokenizer=bpe.json \
      --train=train.jsonl --validation=validation.jsonl --test=test.jsonl
  python -m dape_jax.data.prepare --output=data/c4 --tfds=c4/en
  python -m dape_jax.data.prepare --output=data/mine --verify
  python train.py --config.data.source=data/mine ...

FILES are comma-separated files, folders and globs: .txt (one document each),
.jsonl, .jsonl.gz, .jsonl.zst (one JSON object per line) and .parquet. --tfds
reads a dataset that tensorflow-datasets has prepared as array_record. Splits
that are not given are held out of train by a hash of the document, so equal
documents share a split. Rerun the command to resume after an interruption.
Memory use does not grow with the text. See docs/data.md.
"""

import collections
import pathlib
import sys

import tqdm
from absl import flags

from dape_jax import cli
from dape_jax.data import manifest as manifest_lib
from dape_jax.data import preparation, text_files, tfds_sources
from dape_jax.data.manifest import SPLITS
from dape_jax.data.tokenizers import make_tokenizer
from dape_jax.errors import ConfigError

_OUTPUT = flags.DEFINE_string("output", None, "Output folder.")
_TOKENIZER = flags.DEFINE_string(
    "tokenizer",
    "bytes",
    '"bytes", or a file: tokenizer.json, GPT-2\'s encoder.json, *.model or'
    " *.tiktoken.",
)
_FILES = {
    split: flags.DEFINE_list(split, [], f"FILES for the {split} split.")
    for split in SPLITS
}
_FRACTIONS = {
    split: flags.DEFINE_float(
        f"{split}_fraction",
        0.005,
        f"Fraction of the train documents held out for {split}.",
        lower_bound=0.0,
        upper_bound=0.5,
    )
    for split in ("test", "validation")
}
_TEXT_FIELD = flags.DEFINE_string(
    "text_field",
    "text",
    "Name of the JSON field, column or feature with the text.",
)
_TFDS = flags.DEFINE_string("tfds", None, "Dataset to read instead of files.")
_TFDS_DATA_DIR = flags.DEFINE_string(
    "tfds_data_dir", "", "Its data_dir; empty: ~/tensorflow_datasets."
)
_ON_ERROR = flags.DEFINE_enum(
    "on_error",
    "refuse",
    ["refuse", "skip"],
    "Whether damaged text stops the command, or is skipped and counted.",
)
_VERIFY = flags.DEFINE_bool(
    "verify", False, "Only check the contents of all files in the folder."
)


def _sources() -> dict[str, list]:
  """Returns the sources of each given split."""
  if _TFDS.value:
    for split, files in _FILES.items():
      if files.value:
        raise ConfigError(f"--{split} takes files; --tfds has its own splits.")
    splits = tfds_sources.open_dataset(
        _TFDS.value, _TFDS_DATA_DIR.value, _TEXT_FIELD.value
    )
    return {name: [split] for name, split in splits.items()}
  if flags.FLAGS["tfds_data_dir"].present:
    raise ConfigError("--tfds_data_dir needs --tfds=NAME.")
  if not _FILES["train"].value:
    raise ConfigError("give --train=FILES or --tfds=NAME.")
  found = {
      split: text_files.find_files(split, files.value)
      for split, files in _FILES.items()
      if files.value
  }
  everything = collections.Counter(
      file.resolve() for files in found.values() for file in files
  )
  for file, times in everything.items():
    if times > 1:
      raise ConfigError(f"{file} is given twice; remove one.")
  return {
      split: [text_files.TextFile(file, _TEXT_FIELD.value) for file in files]
      for split, files in found.items()
  }


def _held_out(splits: dict[str, list]) -> dict[str, float]:
  """Returns the fraction held out for each split that is not given."""
  for split, fraction in _FRACTIONS.items():
    if split in splits and flags.FLAGS[fraction.name].present:
      raise ConfigError(
          f"--{fraction.name} needs a split that is held out; {split} is given."
      )
    if split not in splits and not fraction.value:
      raise ConfigError(
          f"--{fraction.name}=0 would leave nothing for {split}: give more, or"
          f" --{split}=FILES."
      )
  held_out = {
      split: fraction.value
      for split, fraction in _FRACTIONS.items()
      if split not in splits
  }
  if sum(held_out.values()) >= 1:
    raise ConfigError(
        "--validation_fraction and --test_fraction leave nothing for train; their"
        " sum must be less than 1."
    )
  return held_out


def _warn_of_few(files: list, held_out: dict[str, float]) -> None:
  """Warns if a held-out split may turn out empty, before reading the files."""
  if not all(file.name.endswith(".txt") for file in files):
    return
  for split, fraction in held_out.items():
    if len(files) * fraction < 3:
      print(
          f"warning: {len(files)} documents (one per .txt file) may leave none for"
          f" {split}: give --{split}=FILES, or a larger --{split}_fraction.",
          file=sys.stderr,
      )


def _verify(folder: pathlib.Path) -> None:
  others = [*_FILES.values(), *_FRACTIONS.values(), _TOKENIZER, _TEXT_FIELD]
  for flag in (*others, _TFDS, _TFDS_DATA_DIR, _ON_ERROR):
    if flags.FLAGS[flag.name].present:
      raise ConfigError(f"--{flag.name} does not apply to --verify; remove it.")
  manifest = manifest_lib.read_manifest(folder)
  with tqdm.tqdm(
      total=manifest_lib.total_bytes(manifest), unit="B", unit_scale=True
  ) as bar:
    files = manifest_lib.verify(folder, manifest, bar.update)
  print(f"{folder}: all {files} files are intact.")


def main(argv: list[str]) -> None:
  if argv[1:]:
    raise ConfigError(
        f"unexpected argument {argv[1]!r}: separate files with commas, and quote a"
        " glob (--train='books/*.jsonl'); flags begin with --."
    )
  if not _OUTPUT.value:
    raise ConfigError("give the folder: --output=DIR.")
  if "," in _OUTPUT.value:
    raise ConfigError(
        "--output: no commas, which separate sources in config.data.source."
    )
  folder = pathlib.Path(_OUTPUT.value).expanduser()
  if _VERIFY.value:
    _verify(folder)
    return
  sources = _sources()
  held_out = _held_out(sources)
  _warn_of_few(sources["train"], held_out)
  job = preparation.Job(
      folder=folder,
      tokenizer=make_tokenizer(_TOKENIZER.value, field="--tokenizer"),
      sources=sources,
      held_out=held_out,
      on_error=_ON_ERROR.value,
  )
  finished = (folder / manifest_lib.MANIFEST).exists()
  manifest = preparation.run(job)
  print(f"{folder} {'was already prepared' if finished else 'is prepared'}:")
  for name, split in manifest["splits"].items():
    print(
        f"  {name}: {split['documents']:,} documents, {split['tokens']:,} tokens,"
        f" {split['bytes']:,} bytes of text, {len(split['shards'])} shards"
    )
  for source in manifest["sources"]:
    if source["skipped"] or source["empty"]:
      print(
          f"  {source['name']}: {source['skipped']:,} damaged documents skipped,"
          f" {source['empty']:,} empty"
      )
  padded = job.tokenizer.padded_vocab_size
  source = folder if "/" in str(folder) else f"./{folder}"
  print(
      f"Train with --config.data.source={source}"
      f" --config.model.vocab_size={padded}; fingerprint"
      f" {manifest['fingerprint']}."
  )


if __name__ == "__main__":
  # Shows "?" for characters the terminal cannot encode.
  sys.stdout.reconfigure(errors="replace")
  cli.run(main)
