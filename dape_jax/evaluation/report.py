"""Results of an evaluation: JSON file, text table, picture.

Schema of the JSON file (version 1). Numbers that are not finite are the
strings "NaN", "Infinity" and "-Infinity", as in protocol buffers' JSON.

    format                "dape_jax.evaluation"
    version               1
    dape_jax_version      of the library that evaluated
    command               the command line
    corpus_fingerprint    of the corpus that was read
    source, tokenizer     its names in the data configuration
    split                 "train", "validation" or "test"
    protocol              "last256" or "all", see `protocols`
    lengths               inputs per reading, increasing
    peak_rss_bytes        peak resident memory of the process
    runs                  one for each checkpoint:
      name                the shortest folder name that tells runs apart
      checkpoint          folder
      encoding            registry name of the position encoding
      train_length        tokens per training window; the crop baseline's context
      step                optimizer steps of the checkpoint
      rows                one for each length:
        length, protocol
        regions           regions of the longest length that were read
        tokens, bytes     scored, over all regions
        nats              total over the scored tokens
        perplexity        exp(nats / tokens)
        bits_per_byte     nats / ln 2 / bytes
        non_finite_tokens scored tokens whose nats are infinite or NaN
        region_nats       nats of each region
        crop_*            the last five for the crop baseline: the same tokens
                          with the context cut to train_length
        seconds           wall time of reading, without the crop baseline
                          (readings shared with a shorter length count there)
"""

import json
import math
import os
import pathlib
from typing import Any

from dape_jax.errors import ConfigError
from dape_jax.evaluation import figure

FORMAT = "dape_jax.evaluation"
VERSION = 1

_NON_FINITE = {"NaN", "Infinity", "-Infinity"}


def _encode(value: Any) -> Any:
  if isinstance(value, dict):
    return {key: _encode(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [_encode(item) for item in value]
  if isinstance(value, float) and not math.isfinite(value):
    # json's own spelling of these, as strings, is valid JSON.
    return json.dumps(value)
  return value


def _decode(value: Any) -> Any:
  if isinstance(value, dict):
    return {key: _decode(item) for key, item in value.items()}
  if isinstance(value, list):
    return [_decode(item) for item in value]
  if isinstance(value, str) and value in _NON_FINITE:
    return float(value)
  return value


def write_json(results: dict[str, Any], path: os.PathLike) -> None:
  """Writes `results` (see the module's schema); replaces `path` atomically."""
  path = pathlib.Path(path)
  document = {"format": FORMAT, "version": VERSION, **_encode(results)}
  partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
  partial.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
  os.replace(partial, path)


def make_folder(folder: os.PathLike) -> None:
  """Creates the folder of results, before hours of work are spent on them.

  Raises:
    ConfigError: it cannot be written to.
  """
  try:
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    writable = os.access(folder, os.W_OK)
  except OSError as error:
    raise ConfigError(f"--output={folder}: {error.strerror}.") from error
  if not writable:
    raise ConfigError(f"--output={folder} cannot be written to.")


def write(results: dict[str, Any], folder: os.PathLike) -> list[pathlib.Path]:
  """Writes results as JSON and PNG.

  Args:
    results: see the module's schema.
    folder: that exists. Files are called split_protocol, and for a single run
      also by its name and step; files of that name are replaced.

  Returns:
    The paths written.
  """
  name = f"{results['split']}_{results['protocol']}"
  if len(results["runs"]) == 1:
    (run,) = results["runs"]
    name += f"_{run['name'].replace('/', '-')}_step{run['step']}"
  json_path = pathlib.Path(folder) / f"{name}.json"
  png_path = json_path.with_suffix(".png")
  write_json(results, json_path)
  figure.plot(results, png_path)
  return [json_path, png_path]


def read_json(path: os.PathLike) -> dict[str, Any]:
  """Returns what `write_json` wrote, without format and version.

  Raises:
    ConfigError: the file is missing, no results file, or of another version.
  """
  try:
    document = json.loads(pathlib.Path(path).read_text())
  except OSError as error:
    raise ConfigError(f"{path}: {error.strerror}.") from error
  except ValueError as error:
    raise ConfigError(f"{path} is not a JSON file: {error}.") from error
  if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
    raise ConfigError(f"{path} is not a file of evaluation results.")
  version = document.pop("version", None)
  if version != VERSION:
    raise ConfigError(
        f"{path} has version {version} of the results format; this dape_jax"
        f" reads version {VERSION}: evaluate the checkpoint again."
    )
  return _decode(document)


def _number(value: float) -> str:
  if not math.isfinite(value):
    return str(value)
  return f"{value:.3f}" if value < 1e4 else f"{value:.3e}"


def table(results: dict[str, Any]) -> str:
  """Returns an aligned text table: lengths down, runs side by side.

  Args:
    results: see the module's schema.

  Returns:
    Lines without a newline at the end. A row whose length is beyond a run's
    training length carries "*" there.
  """
  runs = results["runs"]
  first = runs[0]["rows"][0]
  columns = ("perplexity", "crop", "bits/byte", "crop")
  groups = []
  for run in runs:
    body = [
        (
            ("*" if row["length"] > run["train_length"] else "")
            + _number(row["perplexity"]),
            _number(row["crop_perplexity"]),
            _number(row["bits_per_byte"]),
            _number(row["crop_bits_per_byte"]),
        )
        for row in run["rows"]
    ]
    widths = [max(map(len, column)) for column in zip(columns, *body)]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths))
        for line in (columns, *body)
    ]
    title = figure.describe(run)
    width = max(len(title), len(lines[0]))
    groups.append([line.rjust(width) for line in (title.ljust(width), *lines)])
  labels = ["", "length", *(f"{length}" for length in results["lengths"])]
  labels = [label.rjust(max(map(len, labels))) for label in labels]
  lines = [
      f"{results['split']} split, protocol {results['protocol']}:"
      f" {first['tokens']} tokens ({first['bytes']} bytes) of"
      f" {first['regions']} regions, the same at every length",
      "",
      *(" | ".join(cells) for cells in zip(labels, *groups)),
      "",
      "* beyond the training length; crop: the same tokens with the context"
      " cut to it",
  ]
  lines += [
      f"NOT FINITE: {figure.describe(run)}, length {row['length']}:"
      f" {row[prefix + 'non_finite_tokens']} of {row['tokens']} scored tokens"
      f"{' (crop)' if prefix else ''}"
      for run in runs
      for row in run["rows"]
      for prefix in ("", "crop_")
      if row[prefix + "non_finite_tokens"]
  ]
  return "\n".join(line.rstrip() for line in lines)
