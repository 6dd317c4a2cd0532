"""The corpora that a config names."""

import os
from collections.abc import Sequence

from dape_jax.data import manifest as manifest_lib
from dape_jax.data.corpus import Corpus, open_corpus, open_folder
from dape_jax.data.sources import SOURCES
from dape_jax.data.tokenizers import ByteTokenizer, Tokenizer, make_tokenizer
from dape_jax.errors import ConfigError, did_you_mean


def source_names(source: str) -> tuple[str, ...]:
  """Returns the names in config.data.source, none of "".

  Raises:
    ConfigError: one is neither a built-in corpus nor a path, or is there twice.
  """
  names = tuple(name.strip() for name in source.split(",")) if source else ()
  for name in names:
    if name not in SOURCES and "/" not in name:
      raise ConfigError(
          f"config.data.source={name!r} is"
          f" unknown.{did_you_mean(name, SOURCES)} Or a prepared folder, written"
          " with a slash: ./NAME."
      )
    if names.count(name) > 1:
      raise ConfigError(f"config.data.source: {name!r} is there twice.")
  return names


def _open_source(name: str) -> Corpus:
  try:
    return open_folder(name)
  except ConfigError as e:
    raise ConfigError(f"config.data.source={name}: {e}") from e


def load_corpora(
    source: str = "code",
    tokenizer: str = "",
    data_dir: str | os.PathLike[str] = "",
) -> list[Corpus]:
  """Returns the corpora that `source` names, preparing built-in ones at first.

  Sources of built-in corpora are read every time (about a second), so the
  fingerprint is that of the packages as they are installed now; another version
  gets a folder of its own. Any number of processes may call this at once.

  Args:
    source: one or more, separated by commas: "code" (train: the standard
      library, numpy, jax, orbax; validation: flax, optax; test: scipy), "stdlib"
      (the standard library alone), or a folder that `dape_jax.data.prepare`
      made, written with a slash.
    tokenizer: see `make_tokenizer`; "" is that of the folders, or else "bytes".
    data_dir: local folder for built-in corpora; "" means $DAPE_JAX_DATA or
      ~/.cache/dape_jax.

  Raises:
    ConfigError: unknown source or tokenizer, a folder of another tokenizer, a
      package missing, data_dir not writable, or the prepared data damaged.
  """
  names = source_names(source)
  if not names:
    raise ConfigError(
        "config.data.source is not set: name a folder that `python -m"
        " dape_jax.data.prepare` has made, or a built-in corpus"
        f" ({', '.join(SOURCES)})."
    )
  folders = {n: _open_source(n) for n in names if n not in SOURCES}
  made = None
  if tokenizer:
    made = make_tokenizer(tokenizer)
  for name, corpus in folders.items():
    if made is None:
      made = corpus.tokenizer
    if corpus.tokenizer.sha256 != made.sha256:
      raise ConfigError(
          f"config.data.source={name} was prepared with another tokenizer"
          f" ({corpus.tokenizer.name}) than {made.location}: prepare it with"
          " that one"
          + (", or leave config.data.tokenizer out." if tokenizer else ".")
      )
  location = made.location if made else ByteTokenizer.name
  return [
      folders[name]
      if name in folders
      else open_corpus(SOURCES[name](), name, location, data_dir)
      for name in names
  ]


def load_corpus(
    source: str = "code",
    tokenizer: str = "",
    data_dir: str | os.PathLike[str] = "",
) -> Corpus:
  """Returns one corpus, see `load_corpora`."""
  corpora = load_corpora(source, tokenizer, data_dir)
  if len(corpora) > 1:
    raise ConfigError(f"config.data.source={source}: give one of them.")
  return corpora[0]


def load_tokenizer(
    source: str, tokenizer: str, fingerprints: Sequence[str]
) -> Tokenizer:
  """Returns the tokenizer of corpora, without the corpora where that can be.

  Args:
    source, tokenizer: see `load_corpora`.
    fingerprints: of the corpora when a model was trained on them.

  Raises:
    ConfigError: it is not there, or is not that of the fingerprints.
  """
  folders = [name for name in source_names(source) if name not in SOURCES]
  if tokenizer or not folders:
    made = make_tokenizer(tokenizer or ByteTokenizer.name)
  else:
    made = _open_source(folders[0]).tokenizer
  for fingerprint in fingerprints:
    if not manifest_lib.is_of_tokenizer(fingerprint, made.sha256):
      raise ConfigError(
          f"{made.location} is not the tokenizer that the model was trained with"
          f" (of the corpus {fingerprint}): put that one back."
      )
  return made
