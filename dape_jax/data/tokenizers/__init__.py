"""Tokenizers: text as bytes to token ids and back.

"bytes", or a file on this machine; nothing is ever looked up on a network.
"""

import pathlib
from collections.abc import Callable

from dape_jax.data.tokenizers import hugging_face, rank_files, sentence_pieces
from dape_jax.data.tokenizers.base import Tokenizer
from dape_jax.data.tokenizers.byte_level import ByteTokenizer
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
    name: "bytes" or a path: Hugging Face's tokenizer.json (any name that ends in
      .json), GPT-2's encoder.json with vocab.bpe beside it, sentencepiece's
      *.model, or *.tiktoken whose name says its pattern, such as
      cl100k_base.tiktoken.
    field: what messages call it.

  Raises:
    ConfigError: there is none, its package is not installed, or the file is
      damaged or of a kind that is not supported.
  """
  if name == ByteTokenizer.name:
    return ByteTokenizer()
  path = pathlib.Path(name).expanduser()
  kinds = ", ".join(_READERS)
  if path.suffix not in _READERS:
    valid = did_you_mean(name, [ByteTokenizer.name])
    raise ConfigError(
        f"{field}={name!r} is unknown.{valid} Or a file: {kinds}."
    )
  if not path.is_file():
    raise ConfigError(
        f"{field}={name!r}: there is no such file; give the path of a file on"
        " this machine."
    )
  try:
    return _READERS[path.suffix](path)
  except ConfigError as error:
    raise ConfigError(f"{field}={name}: {error}") from error
