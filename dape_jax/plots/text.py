"""The text whose scores are drawn."""

import dataclasses
import os
import pathlib

import numpy as np

from dape_jax.checkpoint.runs import Run, load_corpus_of, load_tokenizer
from dape_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Text:
  """Tokens [s] int32 of one document from its start, and where they are from."""

  tokens: np.ndarray
  source: str


def read_text(
    run: Run,
    wanted: int,
    *,
    text: os.PathLike | str | None = None,
    string: str | None = None,
    split: str = "test",
    data_dir: str = "",
) -> Text:
  """Returns the first `wanted` tokens of a text, or fewer where it ends.

  Args:
    run: whose tokenizer and corpus are taken.
    wanted: number of tokens.
    text: a file.
    string: the text itself.
    split, data_dir: of the run's corpus, where neither file nor string is given:
      of its documents that are long enough the middle one, or else the longest.

  Raises:
    ConfigError: the file cannot be read, or there is no such corpus.
  """
  if string is not None:
    tokenizer = load_tokenizer(run)
    tokens, source = tokenizer.encode(string.encode()), "--string"
  elif text is not None:
    tokenizer = load_tokenizer(run)
    try:
      content = pathlib.Path(text).read_bytes()
    except OSError as error:
      raise ConfigError(f"--text={text}: {error.strerror}.") from error
    tokens, source = tokenizer.encode(content), pathlib.Path(text).name
  else:
    documents = load_corpus_of([run], data_dir).split(split)
    # Each ends with a token of its own.
    lengths = np.diff(documents.starts) - 1
    long_enough = np.flatnonzero(lengths >= wanted)
    if long_enough.size:
      number = int(long_enough[len(long_enough) // 2])
    else:
      number = int(lengths.argmax())
    start = int(documents.starts[number])
    tokens = documents.tokens[start : start + lengths[number]]
    source = f"{split} split, {documents.name(number)}"
  return Text(np.asarray(tokens[:wanted], np.int32), source)


def require(text: Text, flag: str, wanted: int) -> None:
  """Raises a ConfigError where a text has fewer tokens than `flag` needs."""
  if len(text.tokens) < wanted:
    raise ConfigError(
        f"{flag} needs a text of {wanted} tokens, and {text.source} has"
        f" {len(text.tokens)}: choose less, or another text (--text=FILE)."
    )
