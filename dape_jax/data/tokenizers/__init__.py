"""Tokenizers: bytes of text to token ids and back.

Either "bytes" or a local file; the network is never used.
"""

import pathlib
from collections.abc import Callable

from dape_jax.data.tokenizers import hugging_face, rank_files, sentence_pieces
from dape_jax.data.tokenizers.base import ByteTokenizer, Tokenizer
from dape_jax.errors import ConfigError, did_you_mean

__all__ = ["ByteTokenizer", "Tokenizer", "make_tokenizer"]

_READERS: dict[str, Callable[[pathlib.Path], Tokenizer]] = {
    ".json": hugging_face.read,
    ".model": sentence_pieces.read,
    ".tiktoken": rank_files.read,
}


def make_tokenizer(
    name: str, field: str = "config.data.tokenizer"
) -> Tokenizer:
  """Returns a tokenizer.

  Args:
    name: "bytes" or a path: Hugging Face's tokenizer.json (any name ending in
      .json), GPT-2's encoder.json next to vocab.bpe, sentencepiece's *.model,
      or *.tiktoken with a name that ends with its pattern, such as
      cl100k_base.tiktoken.
    field: name of the setting, for messages.

  Raises:
    ConfigError: the file is missing, damaged or unsupported, or its package is
      not installed.
  """
  if name == ByteTokenizer.name:
    return ByteTokenizer()
  path = pathlib.Path(name).expanduser()
  kinds = ", ".join(_READERS)
  if path.suffix not in _READERS:
    valid = did_you_mean(name, [ByteTokenizer.name])
    raise ConfigError(
        f"{field}={name!r} is unknown.{valid} Otherwise give a file: {kinds}."
    )
  if not path.is_file():
    raise ConfigError(
        f"{field}={name!r}: no such file; give the path of a local file."
    )
  try:
    return _READERS[path.suffix](path)
  except ConfigError as error:
    raise ConfigError(f"{field}={name}: {error}") from error
