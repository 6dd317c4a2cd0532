import base64
import json
import logging
import sys

import byte_bpe
import numpy as np
import pytest
import sentencepiece
import tokenizers

from dape_jax.data import ByteTokenizer, make_tokenizer
from dape_jax.data.tokenizers.hugging_face import byte_letters
from dape_jax.errors import ConfigError

_TEXT = "def main(argv):\n  return len(argv)  # na\u00efve \u4e2d\n\n" * 20
_KINDS = ["bytes", "json", "gpt2", "tiktoken", "sentencepiece"]


def _save_json(folder, **settings):
  path = folder / "code.json"
  tokenizer = byte_bpe.train(_TEXT)
  for name, value in settings.items():
    setattr(tokenizer, name, value)
  tokenizer.enable_truncation(8)
  tokenizer.save(str(path))
  return path


def _save_gpt2(folder):
  model = json.loads(byte_bpe.train(_TEXT).to_str())["model"]
  merges = [" ".join(pair) for pair in model["merges"]]
  path = folder / "encoder.json"
  path.write_text(json.dumps(model["vocab"]))
  path.with_name("vocab.bpe").write_text(
      "\n".join(["#version: 0.2", *merges, ""])
  )
  return path


def _save_tiktoken(folder, name="tiny_gpt2.tiktoken"):
  letters = byte_letters()
  vocab = json.loads(byte_bpe.train(_TEXT).to_str())["model"]["vocab"]
  del vocab[byte_bpe.EOS]
  path = folder / name
  path.write_bytes(
      b"".join(
          base64.b64encode(bytes(letters[c] for c in token)) + b" %d\n" % rank
          for rank, token in enumerate(sorted(vocab, key=vocab.get))
      )
  )
  return path


def _save_sentencepiece(folder, **settings):
  corpus = folder / "text.txt"
  corpus.write_text(_TEXT, encoding="utf-8")
  sentencepiece.SentencePieceTrainer.train(
      input=str(corpus),
      model_prefix=str(folder / "tiny"),
      minloglevel=2,
      hard_vocab_limit=False,
      **dict(vocab_size=300, byte_fallback=True) | settings,
  )
  return folder / "tiny.model"


_LOSSLESS = dict(
    normalization_rule_name="identity",
    remove_extra_whitespaces=False,
    add_dummy_prefix=False,
    user_defined_symbols=["\n"],
)


@pytest.fixture(params=_KINDS, scope="module")
def tokenizer(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp("tokenizer")
  save = {
      "bytes": lambda folder: "bytes",
      "json": _save_json,
      "gpt2": _save_gpt2,
      "tiktoken": _save_tiktoken,
      "sentencepiece": lambda f: _save_sentencepiece(f, **_LOSSLESS),
  }
  return make_tokenizer(str(save[request.param](folder)))


_TEXTS = [
    _TEXT,
    "",
    "  two  spaces\n\n\ttab \r\n",
    "\u4e2d\u6587 \U0001f600 e\u0301 \uff21",
    f"a{byte_bpe.EOS}b</s><s><pad>",
]


def test_round_trip_and_num_bytes(tokenizer):
  texts = [text.encode() for text in _TEXTS]
  batch = tokenizer.encode_batch(texts)
  for text, ids in zip(texts, batch, strict=True):
    assert ids.dtype == tokenizer.dtype and ids.ndim == 1
    np.testing.assert_array_equal(tokenizer.encode(text), ids)
    assert tokenizer.decode(ids) == text
    # Also token by token, as generated text is streamed.
    assert b"".join(tokenizer.decode([i]) for i in ids) == text
    assert tokenizer.num_bytes(ids).sum() == len(text)
    assert not np.isin(ids, [tokenizer.eos]).any()


def test_attributes(tokenizer):
  assert isinstance(tokenizer.eos, int)
  assert tokenizer.eos < tokenizer.vocab_size <= tokenizer.padded_vocab_size
  assert tokenizer.padded_vocab_size % 128 == 0
  assert tokenizer.dtype == np.uint16
  assert tokenizer.name.isprintable() and "/" not in tokenizer.name
  assert len(tokenizer.sha256) == (0 if tokenizer.name == "bytes" else 64)
  assert tokenizer.decode([tokenizer.eos]) == b""
  assert tokenizer.num_bytes([[tokenizer.eos]]).tolist() == [[0]]


@pytest.mark.parametrize("ids", [[2000], [-1], [1.0]])
def test_invalid_ids_are_refused(tokenizer, ids):
  with pytest.raises(ValueError, match="ids must be"):
    tokenizer.decode(ids)
  with pytest.raises(ValueError, match="ids must be"):
    tokenizer.num_bytes(ids)


def test_byte_tokenizer_ids():
  tokenizer = ByteTokenizer()
  text = bytes(range(256))
  np.testing.assert_array_equal(tokenizer.encode(text), np.arange(256))
  assert tokenizer.decode(range(256)) == text
  assert (tokenizer.bos, tokenizer.eos, tokenizer.pad) == (256, 257, 258)
  assert (tokenizer.vocab_size, tokenizer.padded_vocab_size) == (259, 384)
  assert tokenizer.decode([256, 104, 105, 257, 258]) == b"hi"


def test_byte_level_kinds_agree(tmp_path):
  files = [_save_json(tmp_path), _save_gpt2(tmp_path), _save_tiktoken(tmp_path)]
  json_, gpt2, ranks = (make_tokenizer(str(file)) for file in files)
  ids = json_.encode(_TEXT.encode())
  np.testing.assert_array_equal(gpt2.encode(_TEXT.encode()), ids)
  # <|endoftext|> is the first id of one and the last of the other.
  np.testing.assert_array_equal(ranks.encode(_TEXT.encode()) + 1, ids)
  assert (json_.eos, ranks.eos) == (0, ranks.vocab_size - 1)
  assert len({t.sha256 for t in (json_, gpt2, ranks)}) == 3


def test_cl100k_end_of_text_id_is_as_published(tmp_path):
  path = _save_tiktoken(tmp_path, "cl100k_base.tiktoken")
  ranks = len(path.read_bytes().splitlines())
  assert make_tokenizer(str(path)).eos == ranks + 1  # 100257 of 100256 ranks


def test_large_vocabularies_use_uint32(tmp_path):
  path = _save_tiktoken(tmp_path)
  with path.open("ab") as file:
    file.write(base64.b64encode(b"zzz") + b" 70000\n")
  tokenizer = make_tokenizer(str(path))
  assert tokenizer.dtype == np.uint32 and tokenizer.vocab_size == 70001


def test_lossy_tokenizers_warn_once(tmp_path, caplog):
  path = _save_json(tmp_path, normalizer=tokenizers.normalizers.NFC())
  with caplog.at_level(logging.WARNING):
    tokenizer = make_tokenizer(str(path))
    make_tokenizer(str(path))
  assert len(caplog.records) == 1
  assert "changes text" in caplog.text and "Bits per byte" in caplog.text
  assert tokenizer.decode(tokenizer.encode("e\u0301".encode())) == b"\xc3\xa9"
  lossy = _save_sentencepiece(tmp_path, vocab_size=60, byte_fallback=False)
  tokenizer = make_tokenizer(str(lossy))
  ids = tokenizer.encode("def \u2603".encode())
  assert tokenizer.decode(ids) == " def \ufffd".encode()
  assert tokenizer.num_bytes(ids).sum() == len(" def \ufffd".encode())


def test_text_that_is_not_utf8_is_refused(tmp_path):
  tokenizer = make_tokenizer(str(_save_json(tmp_path)))
  with pytest.raises(ConfigError, match="not UTF-8"):
    tokenizer.encode(b"ab\xff")


def test_unknown_tokenizers_are_refused(tmp_path):
  for name, message in (
      ("byte", r'config.data.tokenizer.*"bytes"'),
      ("nowhere/tokenizer.json", "no such file"),
      (str(_save_tiktoken(tmp_path, "x.tiktoken")), "my_gpt2.tiktoken"),
  ):
    with pytest.raises(ConfigError, match=message):
      make_tokenizer(name)
  with pytest.raises(ConfigError, match="--tokenizer='byte'"):
    make_tokenizer("byte", field="--tokenizer")


_FILES = {
    "a.json": "tokenizers",
    "encoder.json": "tokenizers",
    "a.model": "sentencepiece",
    "my_gpt2.tiktoken": "tiktoken",
}


@pytest.mark.parametrize("name, package", _FILES.items())
def test_damaged_file_or_missing_package_is_named(
    tmp_path, name, package, monkeypatch
):
  (tmp_path / name).write_text("damaged")
  (tmp_path / "vocab.bpe").write_text("damaged")
  with pytest.raises(ConfigError, match=name):
    make_tokenizer(str(tmp_path / name))
  monkeypatch.setitem(sys.modules, package, None)
  with pytest.raises(ConfigError, match=f"package {package}: pip install"):
    make_tokenizer(str(tmp_path / name))


def test_unsupported_decoder_or_no_end_of_document_is_refused(tmp_path):
  path = tmp_path / "words.json"
  words = tokenizers.models.WordLevel({"a": 0, "[EOS]": 1}, unk_token="a")
  tokenizer = tokenizers.Tokenizer(words)
  tokenizer.save(str(path))
  with pytest.raises(ConfigError, match="ends a document"):
    make_tokenizer(str(path))
  tokenizer.add_special_tokens(["[EOS]"])
  tokenizer.save(str(path))
  with pytest.raises(ConfigError, match="not pieces of the text"):
    make_tokenizer(str(path))
