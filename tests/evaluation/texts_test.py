"""Text files are the documents of a split."""

import numpy as np
import pytest

from dape_jax import data
from dape_jax.errors import ConfigError
from dape_jax.evaluation.extrapolation import open_texts

_BYTES = data.ByteTokenizer()


@pytest.fixture
def files(tmp_path):
  for name, text in (
      ("a", b"hello\xff"),
      ("b", b"other text"),
      ("c", b"hello\xff"),
      ("empty", b""),
  ):
    (tmp_path / name).write_bytes(text)
  return lambda names: [str(tmp_path / name) for name in names]


def test_documents(files):
  split = open_texts(files("ba"), _BYTES, 6)
  assert split.starts.tolist() == [0, 11, 18]
  assert _BYTES.decode(split.tokens[11:17]) == b"hello\xff"
  assert split.tokens[10] == split.tokens[17] == _BYTES.eos
  assert split.tokens.dtype == np.uint16
  assert [split.name(i) for i in (0, 1)] == files("ba")


def test_fingerprint_is_of_contents(files):
  of = lambda names: open_texts(files(names), _BYTES, 1).fingerprint
  assert of("a") == of("c")
  assert len({of("a"), of("b"), of("ab"), of("ba")}) == 4


@pytest.mark.parametrize(
    "names, longest, message",
    [
        (["missing"], 1, "--text=.*missing: No such file"),
        (["a", "empty"], 1, "empty has 0 tokens, too few for --lengths=1"),
        (["b", "a"], 7, "a has 6 tokens, .*; use --lengths up to 6"),
        (["a", "b", "c"], 1, "/a and .*/c are the same text"),
        (["."], 1, "Is a directory"),
    ],
)
def test_unusable_files_are_rejected(files, names, longest, message):
  with pytest.raises(ConfigError, match=message):
    open_texts(files(names), _BYTES, longest)
