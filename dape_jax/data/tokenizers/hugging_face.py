"""Reads tokenizer.json, and GPT-2's encoder.json with vocab.bpe."""

import json
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dape_jax.data.tokenizers.base import TextTokenizer, Tokenizer, package
from dape_jax.errors import ConfigError

# The file does not record the roles of its special tokens.
_EOS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]")
_BOS = ("<|begin_of_text|>", "<s>", "<bos>", "[BOS]")
_PAD = ("<pad>", "<|pad|>", "<|padding|>", "[PAD]")

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_UNKNOWN = "\ufffd".encode()


def byte_letters() -> dict[str, int]:
  """Returns the byte of each letter in byte-level vocabularies.

  Printable Latin-1 bytes map to themselves, the others to U+0100 and up
  (GPT-2's encoder.py, Radford et al. 2019).
  """
  printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = [byte for byte in range(256) if byte not in printable]
  letters = {chr(byte): byte for byte in printable}
  return letters | {chr(256 + i): byte for i, byte in enumerate(others)}


def _tokenizer(
    tokenizer: Any, files: Sequence[pathlib.Path], unknown: str | None
) -> Tokenizer:
  """Returns the tokenizer of a `tokenizers.Tokenizer`.

  Args:
    tokenizer: `tokenizers.Tokenizer`.
    files: the files it was read from.
    unknown: token for text that the vocabulary lacks.

  Raises:
    ConfigError: it has no end-of-document token, or an unsupported decoder.
  """
  # Not saved in the file. Without it, "<|endoftext|>" in a text becomes EOS.
  tokenizer.encode_special_tokens = True
  tokenizer.no_truncation()
  tokenizer.no_padding()
  added = tokenizer.get_added_tokens_decoder()
  special = {t.content: i for i, t in added.items() if t.special}
  eos = _first(special, _EOS)
  if eos is None:
    raise ConfigError(
        "has no special token that ends a document; add one of"
        f" {', '.join(_EOS)}."
    )
  vocabulary = tokenizer.get_vocab(with_added_tokens=True)
  pieces = [b""] * (max(vocabulary.values()) + 1)
  to_bytes = _piece_bytes(_decoders(tokenizer))
  for token, i in vocabulary.items():
    if i in added:
      pieces[i] = b"" if added[i].special else token.encode()
    elif token == unknown:
      pieces[i] = _UNKNOWN
    else:
      pieces[i] = to_bytes(token)

  def encode(texts: list[str]) -> Iterator[list[int]]:
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return (encoding.ids for encoding in encodings)

  bos, pad = _first(special, _BOS), _first(special, _PAD)
  return TextTokenizer(encode, files, pieces, eos=eos, bos=bos, pad=pad)


def _first(special: dict[str, int], names: Sequence[str]) -> int | None:
  return next((special[name] for name in names if name in special), None)


def _decoders(tokenizer: Any) -> set[str]:
  """Returns how tokens are spelled: "byte", "space" or both."""
  decoder = json.loads(tokenizer.to_str())["decoder"] or {"decoders": []}
  found = set()
  for step in decoder.get("decoders", [decoder]):
    if step["type"] == "ByteLevel":
      found.add("byte")
    if step["type"] == "Metaspace" or (
        step["type"] == "Replace" and step["pattern"] == {"String": "\u2581"}
    ):
      found.add("space")
  return found


def _piece_bytes(decoders: set[str]) -> Callable[[str], bytes]:
  if decoders == {"byte"}:
    letters = byte_letters()
    return lambda token: bytes(letters[letter] for letter in token)
  if decoders == {"space"}:

    def to_bytes(token: str) -> bytes:
      byte = _BYTE_PIECE.fullmatch(token)
      if byte:
        return bytes([int(byte[1], 16)])
      return token.replace("\u2581", " ").encode()

    return to_bytes
  raise ConfigError(
      "its decoder is neither ByteLevel nor Metaspace, so its tokens are not"
      " pieces of the text; use a byte-level tokenizer."
  )


def read(path: pathlib.Path) -> Tokenizer:
  """Returns the tokenizer of a .json file; see `make_tokenizer`.

  Raises:
    ConfigError: see `make_tokenizer`.
  """
  tokenizers = package("tokenizers")
  if path.name == "encoder.json":
    return _read_gpt2(path, tokenizers)
  try:
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
  except Exception as error:  # The package raises nothing narrower.
    raise ConfigError(f"is not a valid tokenizer.json ({error}).") from error
  unknown = json.loads(tokenizer.to_str())["model"].get("unk_token")
  return _tokenizer(tokenizer, [path], unknown)


def _read_gpt2(path: pathlib.Path, tokenizers: Any) -> Tokenizer:
  merges = path.with_name("vocab.bpe")
  if not merges.is_file():
    raise ConfigError(f"needs {merges.name} next to it.")
  try:
    model = tokenizers.models.BPE.from_file(str(path), str(merges))
  except Exception as error:  # The package raises nothing narrower.
    raise ConfigError(f"is not a GPT-2 vocabulary ({error}).") from error
  tokenizer = tokenizers.Tokenizer(model)
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
      add_prefix_space=False
  )
  tokenizer.decoder = tokenizers.decoders.ByteLevel()
  if tokenizer.token_to_id(_EOS[0]) is not None:
    tokenizer.add_special_tokens([_EOS[0]])
  return _tokenizer(tokenizer, [path, merges], None)
