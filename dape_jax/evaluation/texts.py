"""Text files as the documents of a split."""

import collections
import hashlib
import pathlib
from collections.abc import Sequence

import numpy as np

from dape_jax import data
from dape_jax.errors import ConfigError


def open_texts(
    paths: Sequence[str], tokenizer: data.Tokenizer, longest: int
) -> data.Split:
  """Returns a split of one document a file, each with one EOS at its end.

  Args:
    paths: of the files; their bytes are the text.
    tokenizer: of the runs.
    longest: inputs that each file must allow to read.

  Returns:
    A split called "text"; its fingerprint is the hash of the files' contents in
    their order.

  Raises:
    ConfigError: a file is missing, empty or too short, or two are the same.
  """
  documents, hashes = [], []
  for path in paths:
    try:
      text = pathlib.Path(path).expanduser().read_bytes()
    except OSError as error:
      raise ConfigError(f"--text={path}: {error.strerror}.") from error
    tokens = np.append(
        tokenizer.encode(text), tokenizer.dtype.type(tokenizer.eos)
    )
    allowed = len(tokens) - 1
    if allowed < longest:
      fix = f"use --lengths up to {allowed}" if allowed else "leave it out"
      raise ConfigError(
          f"--text={path} has {allowed} tokens, too few for"
          f" --lengths={longest}; {fix}."
      )
    documents.append(tokens)
    hashes.append(hashlib.sha256(text).hexdigest())
  [(most, count)] = collections.Counter(hashes).most_common(1)
  if count > 1:
    first, second, *_ = (p for p, h in zip(paths, hashes) if h == most)
    raise ConfigError(
        f"--text: {first} and {second} are the same text, which would count"
        " twice; leave one out."
    )
  return data.Split(
      split_name="text",
      fingerprint=hashlib.sha256("".join(hashes).encode()).hexdigest()[:16],
      tokens=np.concatenate(documents),
      starts=np.cumsum([0, *map(len, documents)]),
      name_of=paths.__getitem__,
  )
