"""Reads sentencepiece's *.model."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from dape_jax.data.tokenizers.base import (
    Tokenizer,
    package,
    strings,
    warn_if_lossy,
)
from dape_jax.errors import ConfigError


class SentencePieceTokenizer(Tokenizer):
  """A tokenizer from the package sentencepiece.

  Most models prepend a space to a text, which remains when it is decoded.
  """

  def __init__(self, processor: Any, path: pathlib.Path):
    """Initializes.

    Args:
      processor: `sentencepiece.SentencePieceProcessor`.
      path: the file it was read from.

    Raises:
      ConfigError: it has no end-of-document token.
    """
    self._processor = processor
    if processor.eos_id() < 0:
      raise ConfigError("has no </s>; train it with an eos_id.")
    super().__init__(
        [path],
        [self._piece(i) for i in range(processor.get_piece_size())],
        eos=processor.eos_id(),
        bos=_or_none(processor.bos_id()),
        pad=_or_none(processor.pad_id()),
    )
    warn_if_lossy(self)

  def _piece(self, i: int) -> bytes:
    processor = self._processor
    piece = processor.id_to_piece(i)
    if processor.is_control(i) or processor.is_unused(i):
      return b""
    if processor.is_unknown(i):
      return "\ufffd".encode()
    if processor.is_byte(i):  # <0x0A>
      return bytes([int(piece[3:5], 16)])
    return piece.replace("\u2581", " ").encode()

  def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
    ids = self._processor.encode(strings(texts), out_type=int, num_threads=-1)
    return [np.array(row, self.dtype) for row in ids]


def _or_none(i: int) -> int | None:
  return i if i >= 0 else None


def read(path: pathlib.Path) -> Tokenizer:
  """Returns the tokenizer of a .model file.

  Raises:
    ConfigError: see `make_tokenizer`.
  """
  sentencepiece = package("sentencepiece")
  try:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
  except Exception as error:  # The package raises RuntimeError and OSError.
    raise ConfigError(f"is not a sentencepiece model ({error}).") from error
  return SentencePieceTokenizer(processor, path)
