"""Bytes as tokens."""

from collections.abc import Sequence

import numpy as np

from dape_jax.data.tokenizers.base import Tokenizer


class ByteTokenizer(Tokenizer):
  """One token per byte, and three special tokens: 256, 257 and 258."""

  name = "bytes"

  def __init__(self):
    pieces = [bytes([i]) for i in range(256)]
    super().__init__([], [*pieces, b"", b"", b""], bos=256, eos=257, pad=258)

  def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
    return [np.frombuffer(t, np.uint8).astype(self.dtype) for t in texts]
