import numpy as np
import pytest

from dape_jax.data import ByteTokenizer, make_tokenizer
from dape_jax.errors import ConfigError


def test_every_byte_comes_back():
  tokenizer = ByteTokenizer()
  text = bytes(range(256)) * 3
  ids = tokenizer.encode(text)
  assert ids.dtype == np.uint16 and ids.shape == (768,)
  assert tokenizer.decode(ids) == text
  assert tokenizer.encode(b"").shape == (0,)
  assert tokenizer.decode([]) == b""


def test_special_tokens_stand_for_no_bytes():
  tokenizer = ByteTokenizer()
  assert (tokenizer.bos, tokenizer.eos, tokenizer.pad) == (256, 257, 258)
  assert (tokenizer.vocab_size, tokenizer.padded_vocab_size) == (259, 384)
  ids = [tokenizer.bos, 104, 105, tokenizer.eos, tokenizer.pad]
  assert tokenizer.decode(ids) == b"hi"
  num_bytes = tokenizer.num_bytes(ids)
  assert num_bytes.dtype == np.int64
  assert num_bytes.tolist() == [0, 1, 1, 0, 0]


@pytest.mark.parametrize("ids", [[259], [-1], [1.0]])
def test_ids_outside_the_vocabulary_are_refused(ids):
  with pytest.raises(ValueError, match="ids must be"):
    ByteTokenizer().decode(ids)
  with pytest.raises(ValueError, match="ids must be"):
    ByteTokenizer().num_bytes(ids)


def test_unknown_tokenizer_is_refused():
  with pytest.raises(ConfigError, match=r'config.data.tokenizer.*"bytes"'):
    make_tokenizer("byte")
