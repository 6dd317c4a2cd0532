"""The results file, `results.json`.

Schema, version 2. Numbers that are not finite are the strings "NaN", "Infinity"
and "-Infinity", as in the JSON encoding of protocol buffers.

    format                "dape_jax.evaluation"
    version               2
    dape_jax_version      version of the library that evaluated
    command               the command line
    corpus_fingerprint    fingerprint of the evaluated corpus
    source, tokenizer     their names in the data configuration; for --text, the
                          file names separated by commas
    split                 "train", "validation" or "test"; "text" for files
    protocol              selects the scored tokens, see `protocols`
    stride                tokens between windows of protocol "sliding", null if
                          not given; each row has the stride used
    lengths               context lengths, increasing
    peak_rss_bytes        peak resident memory of the process
    documents             indices of the evaluated documents in the split
    document_names        their names
    runs                  one per checkpoint:
      name                shortest path suffix unique to the run
      checkpoint          folder
      encoding            registry name of the position encoding
      train_length        tokens per training window, and crop context
      step                optimizer steps of the checkpoint
      seed                training seed
      rows                one per length:
        length, stride
        documents         number of evaluated documents
        regions           number of evaluated regions of the longest length
        tokens, bytes     scored, over all regions
        nats              total over the scored tokens
        perplexity        exp(nats / tokens)
        perplexity_low, perplexity_high
                          95% bootstrap interval over documents, null with fewer
                          than two
        bits_per_byte     nats / ln 2 / bytes
        non_finite_tokens scored tokens whose nats are infinite or NaN
        document_nats, document_tokens
                          per document, in the order of `documents`
        crop_*            nats, perplexity, its interval, bits_per_byte,
                          non_finite_tokens and document_nats of the crop
                          baseline: the same tokens with the context cut to
                          train_length
        seconds           wall time without the crop baseline (windows shared
                          with a shorter length count there)
      positions           null, or for protocol "positionwise" one per range of
                          positions:
        begin, end        the first position and the one after the last
        tokens, nats      scored in the range
        loss              nats per token
        crop_nats, crop_loss
                          the same for the crop baseline
      retrieval           one per task, length and depth, [] if not requested:
        task, length      name of the task, tokens of the text
        depth             of the needle, 0 (begin) to 1 (end), or null
        samples           number of texts
        exact_match       fraction of the texts answered exactly
        token_accuracy    fraction of the answer tokens
    groups                runs that differ only in the seed:
      name                unique name of the group
      encoding, train_length
      runs                names of the runs
      rows                one per length:
        length
        perplexity_mean   mean over the runs
        perplexity_std    sample standard deviation, null for one run
        crop_perplexity_mean, crop_perplexity_std
    comparisons           one per length and pair:
      length
      a, b                names of groups; b = "crop" is the crop baseline of a
      difference          a - b, nats per scored token; seeds are averaged for
                          each document first
      difference_low, difference_high
                          95% bootstrap interval over documents
      p_value             paired sign-flip test over documents, two-sided, NaN
                          if a document's nats are not finite
"""

import json
import math
import os
import pathlib
from typing import Any

from dape_jax.errors import ConfigError

FORMAT = "dape_jax.evaluation"
VERSION = 2

_NON_FINITE = {"NaN", "Infinity", "-Infinity"}


def _encode(value: Any) -> Any:
  if isinstance(value, dict):
    return {key: _encode(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [_encode(item) for item in value]
  if isinstance(value, float) and not math.isfinite(value):
    # json writes bare NaN and Infinity, which are not valid JSON.
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
  """Writes results in the schema above, replacing `path` atomically."""
  path = pathlib.Path(path)
  document = {"format": FORMAT, "version": VERSION, **_encode(results)}
  partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
  partial.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
  os.replace(partial, path)


def read_json(path: os.PathLike) -> dict[str, Any]:
  """Reads a file of `write_json`; returns it without format and version.

  Raises:
    ConfigError: the file is missing, is not a results file, or has another
      version.
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
        f"{path} has version {version} of the results format, but this dape_jax"
        f" reads version {VERSION}: evaluate the checkpoints again with this"
        " version's eval.py, or read the file with the dape_jax that wrote it."
    )
  return _decode(document)


def make_folder(folder: os.PathLike) -> None:
  """Creates a folder for results.

  Raises:
    ConfigError: it cannot be created or is not writable.
  """
  try:
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    writable = os.access(folder, os.W_OK)
  except OSError as error:
    raise ConfigError(f"--output={folder}: {error.strerror}.") from error
  if not writable:
    raise ConfigError(f"--output={folder} is not writable.")
