"""The tokenizer interface, and bytes as tokens."""

import abc
import functools
import hashlib
import importlib
import pathlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from absl import logging

from dape_jax.errors import ConfigError

_VOCAB_MULTIPLE = 128  # lanes of a TPU register, so the head fills whole tiles

# Text that normalizers change: composed characters, width, spaces, case, and a
# symbol missing from small vocabularies.
_PROBE = "  Ab\tc\n\ne\u0301 \uff21  \u2581x \U0001f600 "


class Tokenizer(abc.ABC):
  """Turns bytes into ids and ids into bytes.

  Bits per byte count the bytes that the scored tokens decode to, which are the
  bytes of the text if the tokenizer is byte-level. A tokenizer that normalizes,
  or maps unknown text to an id (U+FFFD), loses text: it logs a warning once,
  and bits per byte then refer to the decoded text.

  Attributes:
    name: short name of letters, digits, "_", "." and "-".
    sha256: hash of its files; "" for bytes.
    files: the files it was read from.
    bos, pad: ids of special tokens, or None.
    eos: id of the token that ends each document.
    vocab_size: number of ids in use.
    padded_vocab_size: rows the embedding should have, a multiple of 128.
    dtype: dtype of the ids, uint16 if they fit, else uint32.
  """

  def __init__(
      self,
      files: Sequence[pathlib.Path],
      pieces: Sequence[bytes],
      *,
      eos: int,
      bos: int | None = None,
      pad: int | None = None,
  ):
    """Initializes.

    Args:
      files: the files it was read from; the first determines the name.
      pieces: bytes of each id; b"" for special tokens.
      eos, bos, pad: see `Tokenizer`.
    """
    self.files = tuple(files)
    hashes = [hashlib.sha256(f.read_bytes()).hexdigest() for f in self.files]
    self.sha256 = hashes[0] if len(hashes) == 1 else ""
    if len(hashes) > 1:
      self.sha256 = hashlib.sha256("".join(hashes).encode()).hexdigest()
    if self.files:
      self.name = re.sub(r"[^\w.-]", "_", self.files[0].stem, flags=re.ASCII)
    self.eos, self.bos, self.pad = eos, bos, pad
    self.vocab_size = len(pieces)
    self.padded_vocab_size = (
        -(-len(pieces) // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE
    )
    self.dtype = np.dtype(np.uint16 if len(pieces) <= 2**16 else np.uint32)
    self._pieces = list(pieces)
    self._sizes = np.array([len(piece) for piece in pieces], np.int64)

  @property
  def location(self) -> str:
    """Returns the argument of `make_tokenizer`: a path, or "bytes"."""
    return str(self.files[0]) if self.files else self.name

  def encode(self, text: bytes) -> np.ndarray:
    """Returns the ids of `text`, `dtype` [T]; adds no special tokens.

    Special tokens that occur in the text are encoded as plain text.

    Raises:
      ConfigError: the text is not UTF-8, and the tokenizer is not "bytes".
    """
    return self.encode_batch([text])[0]

  @abc.abstractmethod
  def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
    """Returns the ids of each text; see `encode`. Uses all cores."""

  def decode(self, ids: npt.ArrayLike) -> bytes:
    """Returns the bytes of `ids`; special tokens decode to nothing.

    Args:
      ids: integers [T].

    Raises:
      ValueError: an id is not below vocab_size.
    """
    return b"".join([self._pieces[i] for i in self._checked(ids).tolist()])

  def num_bytes(self, ids: npt.ArrayLike) -> np.ndarray:
    """Returns the number of bytes each token decodes to, 0 for special tokens.

    Args:
      ids: integers of any shape.

    Returns:
      int64, shape of `ids`.

    Raises:
      ValueError: an id is not below vocab_size.
    """
    return self._sizes[self._checked(ids)]

  def _checked(self, ids: npt.ArrayLike) -> np.ndarray:
    ids = np.asarray(ids)
    if ids.size == 0:
      return ids.astype(self.dtype)
    if not np.issubdtype(ids.dtype, np.integer):
      raise ValueError(f"ids must be integers, not {ids.dtype}.")
    if ids.min() < 0 or ids.max() >= self.vocab_size:
      raise ValueError(
          f"ids must be in [0, {self.vocab_size}); got {ids.min()} to"
          f" {ids.max()}. Higher ids only pad the vocabulary."
      )
    return ids


class ByteTokenizer(Tokenizer):
  """One token per byte; BOS is 256, EOS 257 and PAD 258."""

  name = "bytes"

  def __init__(self):
    pieces = [bytes([i]) for i in range(256)]
    super().__init__([], [*pieces, b"", b"", b""], bos=256, eos=257, pad=258)

  def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
    return [np.frombuffer(t, np.uint8).astype(self.dtype) for t in texts]


@functools.cache
def _warn_once(message: str) -> None:
  logging.warning(message)


class TextTokenizer(Tokenizer):
  """A tokenizer of UTF-8 text, from an optional package."""

  def __init__(
      self,
      encode: Callable[[list[str]], Iterable[Sequence[int]]],
      files: Sequence[pathlib.Path],
      pieces: Sequence[bytes],
      **special: int | None,
  ):
    """Initializes; warns once if decoding does not reproduce the text.

    Args:
      encode: returns the ids of each text.
      files, pieces, **special: see `Tokenizer`.
    """
    super().__init__(files, pieces, **special)
    self._encode = encode
    back = self.decode(self.encode(_PROBE.encode()))
    if back != _PROBE.encode():
      _warn_once(
          f"Tokenizer {self.files[0]} changes text: {_PROBE!r} decodes to"
          f" {back.decode(errors='replace')!r}. Bits per byte will refer to the"
          " decoded text."
      )

  def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
    try:
      strings = [text.decode() for text in texts]
    except UnicodeDecodeError as error:
      raise ConfigError(
          f"the text is not UTF-8 (byte {error.start}), which this tokenizer"
          ' needs: fix it, or use "bytes", which accepts any text.'
      ) from error
    return [np.array(ids, self.dtype) for ids in self._encode(strings)]


def package(name: str) -> Any:
  """Imports and returns an optional package.

  Raises:
    ConfigError: it is not installed.
  """
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise ConfigError(
        f"needs the package {name}: pip install 'dape_jax[tokenizers]'."
    ) from error
