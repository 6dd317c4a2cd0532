"""Tokenizers: text as bytes to token ids and back."""

import numpy as np
import numpy.typing as npt

from dape_jax.errors import ConfigError, did_you_mean

_VOCAB_MULTIPLE = 128  # lanes of a TPU register; a padded head wastes no tile


class ByteTokenizer:
  """One token per byte, and three special tokens.

  Attributes:
    name: "bytes".
    bos, eos, pad: ids of the special tokens, 256, 257 and 258.
    vocab_size: number of ids in use, 259.
    padded_vocab_size: rows the embedding should have, 384.
  """

  name = "bytes"
  bos = 256
  eos = 257
  pad = 258
  vocab_size = 259
  padded_vocab_size = -(-vocab_size // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE

  def encode(self, text: bytes) -> np.ndarray:
    """Returns the ids of `text`, uint16 [len(text)], no special tokens."""
    return np.frombuffer(text, np.uint8).astype(np.uint16)

  def decode(self, ids: npt.ArrayLike) -> bytes:
    """Returns the bytes that `ids` stand for; special tokens stand for none.

    Args:
      ids: integers [T].

    Raises:
      ValueError: an id is not below vocab_size.
    """
    ids = self._checked(ids)
    return ids[ids < self.bos].astype(np.uint8).tobytes()

  def num_bytes(self, ids: npt.ArrayLike) -> np.ndarray:
    """Returns how many bytes each token stands for: 1, or 0 for a special one.

    Args:
      ids: integers of any shape.

    Returns:
      int64, shape of `ids`.

    Raises:
      ValueError: an id is not below vocab_size.
    """
    return (self._checked(ids) < self.bos).astype(np.int64)

  def _checked(self, ids: npt.ArrayLike) -> np.ndarray:
    ids = np.asarray(ids)
    if ids.size == 0:
      return ids.astype(np.uint16)
    if not np.issubdtype(ids.dtype, np.integer):
      raise ValueError(f"ids must be integers, not {ids.dtype}.")
    if ids.min() < 0 or ids.max() >= self.vocab_size:
      raise ValueError(
          f"ids must be in [0, {self.vocab_size}); got {ids.min()} to"
          f" {ids.max()}. Ids above are rows that only pad the vocabulary."
      )
    return ids


_TOKENIZERS = {ByteTokenizer.name: ByteTokenizer}


def make_tokenizer(name: str) -> ByteTokenizer:
  """Returns the tokenizer called `name`.

  Raises:
    ConfigError: there is none.
  """
  if name not in _TOKENIZERS:
    raise ConfigError(
        f"config.data.tokenizer={name!r} is unknown."
        f"{did_you_mean(name, _TOKENIZERS)}"
    )
  return _TOKENIZERS[name]()
