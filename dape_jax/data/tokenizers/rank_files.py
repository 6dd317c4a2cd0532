"""Reads tiktoken's rank files, *.tiktoken."""

import base64
import functools
import os
import pathlib
from typing import NamedTuple

from dape_jax.data.tokenizers.base import TextTokenizer, Tokenizer, package
from dape_jax.errors import ConfigError, did_you_mean


class _Pattern(NamedTuple):
  """The pre-tokenization pattern and the id of the special token.

  Attributes:
    regex: as published in tiktoken's openai_public.py.
    eos_gap: offset of <|endoftext|> from the first id without a rank.
  """

  regex: str
  eos_gap: int


_GPT2 = _Pattern(
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    0,
)
# Keyed by the end of the file name: the file does not record its pattern.
_PATTERNS = {
    "gpt2": _GPT2,
    "r50k_base": _GPT2,
    "p50k_base": _GPT2,
    "cl100k_base": _Pattern(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+|"
        r" ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
        1,
    ),
}


def _read_ranks(path: pathlib.Path) -> dict[bytes, int]:
  # tiktoken.load caches files by path and would miss changes.
  ranks = {}
  for number, line in enumerate(path.read_bytes().splitlines(), 1):
    try:
      token, rank = line.split()
      ranks[base64.b64decode(token, validate=True)] = int(rank)
    except ValueError as error:
      raise ConfigError(
          f"line {number} is not a token in base64 and its rank."
      ) from error
  missing = [i for i in range(256) if bytes([i]) not in ranks]
  if missing or len(set(ranks.values())) < len(ranks):
    raise ConfigError("lacks a single byte, or repeats a rank.")
  return ranks


def read(path: pathlib.Path) -> Tokenizer:
  """Returns the tokenizer of a .tiktoken file.

  Raises:
    ConfigError: see `make_tokenizer`.
  """
  name = next((n for n in _PATTERNS if path.stem.endswith(n)), None)
  if name is None:
    raise ConfigError(
        f"the name must end with its pattern, as in my_gpt2.tiktoken."
        f"{did_you_mean(path.stem, _PATTERNS)}"
    )
  tiktoken = package("tiktoken")
  ranks = _read_ranks(path)
  pattern = _PATTERNS[name]
  used = set(ranks.values())
  free = next(i for i in range(len(ranks) + 1) if i not in used)
  eos = free + pattern.eos_gap
  pieces = [b""] * (max(eos, *used) + 1)
  for token, rank in ranks.items():
    pieces[rank] = token
  encoding = tiktoken.Encoding(
      path.stem,
      pat_str=pattern.regex,
      mergeable_ranks=ranks,
      special_tokens={"<|endoftext|>": eos},
  )
  encode = functools.partial(
      encoding.encode_ordinary_batch, num_threads=os.cpu_count() or 1
  )
  return TextTokenizer(encode, [path], pieces, eos=eos)
