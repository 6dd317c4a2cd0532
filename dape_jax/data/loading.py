"""Loads the corpora and tokenizers named in a config."""

import os
from collections.abc import Sequence

from dape_jax.data import manifest as manifest_lib
from dape_jax.data.corpus import Corpus, open_folder
from dape_jax.data.documents import open_corpus
from dape_jax.data.sources import SOURCES
from dape_jax.data.tokenizers import ByteTokenizer, Tokenizer, make_tokenizer
from dape_jax.errors import ConfigError, did_you_mean


def source_names(source: str) -> tuple[str, ...]:
  """Returns the names in config.data.source, empty for "".

  Raises:
    ConfigError: a name is neither a built-in corpus nor a path, or is repeated.
  """
  names = tuple(name.strip() for name in source.split(",")) if source else ()
  for name in names:
    if name not in SOURCES and "/" not in name:
      raise ConfigError(
          f"config.data.source={name!r} is"
          f" unknown.{did_you_mean(name, SOURCES)} Write a prepared folder with a"
          " slash: ./NAME."
      )
    if names.count(name) > 1:
      raise ConfigError(f"config.data.source: {name!r} is given twice.")
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
  """Returns the corpora of `source`, preparing built-in ones on first use.

  The sources of built-in corpora are read on every call (about a second), so
  the fingerprint matches the installed packages; each version gets its own
  folder. Safe to call from several processes at once.

  Args:
    source: one or more, separated by commas: "code" (train: the standard
      library, numpy, jax, orbax; validation: flax, optax; test: scipy),
      "stdlib" (the standard library alone), or a folder written by
      `dape_jax.data.prepare`, with a slash in its name.
    tokenizer: see `make_tokenizer`; "" selects the one of the folders, else
      "bytes".
    data_dir: local folder for built-in corpora; "" means $DAPE_JAX_DATA or
      ~/.cache/dape_jax.

  Raises:
    ConfigError: the source or tokenizer is unknown, a folder has another
      tokenizer, a package is missing, data_dir is not writable, or the prepared
      data is damaged.
  """
  names = source_names(source)
  if not names:
    raise ConfigError(
        "config.data.source is not set: give a folder written by `python -m"
        " dape_jax.data.prepare`, or a built-in corpus"
        f" ({', '.join(SOURCES)})."
    )
  folders = {n: _open_source(n) for n in names if n not in SOURCES}
  made = make_tokenizer(tokenizer) if tokenizer else None
  for name, corpus in folders.items():
    made = made or corpus.tokenizer
    if corpus.tokenizer.sha256 != made.sha256:
      raise ConfigError(
          f"config.data.source={name} was prepared with another tokenizer"
          f" ({corpus.tokenizer.name}) than {made.location}: prepare it with"
          " that one"
          + (", or unset config.data.tokenizer." if tokenizer else ".")
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
  """Returns a single corpus; see `load_corpora`."""
  corpora = load_corpora(source, tokenizer, data_dir)
  if len(corpora) > 1:
    raise ConfigError(f"config.data.source={source}: give a single source.")
  return corpora[0]


def load_tokenizer(
    source: str, tokenizer: str, fingerprints: Sequence[str]
) -> Tokenizer:
  """Returns the tokenizer of corpora, opening a corpus only if necessary.

  Args:
    source, tokenizer: see `load_corpora`.
    fingerprints: those of the corpora at training time.

  Raises:
    ConfigError: the tokenizer is missing, or does not match the fingerprints.
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
          f" (corpus {fingerprint}): restore that one."
      )
  return made
