"""Reads sentencepiece's *.model."""

import functools
import pathlib
from typing import Any

from dape_jax.data.tokenizers.base import TextTokenizer, Tokenizer, package
from dape_jax.errors import ConfigError


def _piece(processor: Any, i: int) -> bytes:
  piece = processor.id_to_piece(i)
  if processor.is_control(i) or processor.is_unused(i):
    return b""
  if processor.is_unknown(i):
    return "\ufffd".encode()
  if processor.is_byte(i):  # <0x0A>
    return bytes([int(piece[3:5], 16)])
  return piece.replace("\u2581", " ").encode()


def read(path: pathlib.Path) -> Tokenizer:
  """Returns the tokenizer of a .model file.

  Most models prepend a space to a text, which remains when it is decoded.

  Raises:
    ConfigError: see `make_tokenizer`.
  """
  sentencepiece = package("sentencepiece")
  try:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
  except Exception as error:  # The package raises RuntimeError and OSError.
    raise ConfigError(f"is not a sentencepiece model ({error}).") from error
  if processor.eos_id() < 0:
    raise ConfigError("has no </s>; train it with an eos_id.")
  bos, pad = processor.bos_id(), processor.pad_id()
  return TextTokenizer(
      functools.partial(processor.encode, out_type=int, num_threads=-1),
      [path],
      [_piece(processor, i) for i in range(processor.get_piece_size())],
      eos=processor.eos_id(),
      bos=bos if bos >= 0 else None,
      pad=pad if pad >= 0 else None,
  )
