"""Built-in corpora: the Python sources of the installed packages.

Nothing is downloaded and no package is imported; files are read from where
Python would import them. Licenses of the texts: PSF (standard library), BSD
(numpy, scipy) and Apache-2.0 (jax, orbax, flax, optax).
"""

import hashlib
import importlib.util
import os
import pathlib
import re
import sysconfig
from collections.abc import Callable, Iterator

from dape_jax.data.documents import Document
from dape_jax.errors import ConfigError

_MIN_BYTES = 2048  # shorter files are uninformative about context length

_CODE_PACKAGES = {
    "numpy": "train",
    "jax": "train",
    "orbax": "train",
    "flax": "validation",
    "optax": "validation",
    "scipy": "test",
}

# Excludes tests, GUI code, tables and generated settings.
_EXCLUDED_FOLDERS = frozenset({"test", "tests", "__pycache__"})
_EXCLUDED_STDLIB = re.compile(
    r"(idlelib|lib2to3|encodings|pydoc_data|_sysconfigdata.*)$"
)
# __config__.py is generated when a wheel is built and names the compiler, so
# the fingerprint would depend on the platform.
_EXCLUDED_FILES = re.compile(r"(test_.*|.*_test|conftest|__config__)\.py$")

_LEADING_COMMENT = re.compile(rb"\A(?:[ \t\f]*(?:#[^\n]*)?\n)+")
_LICENCE_WORDS = re.compile(rb"licen[cs]e|copyright|spdx", re.IGNORECASE)

# Groups modules with the same implementation, which would leak between splits.
# The name of the group determines its split.
_STDLIB_ALIASES = {
    "decimal": "_pydecimal",
    "io": "_pyio",
    "datetime": "_strptime",
    "_pydatetime": "_strptime",
    "sre_compile": "re",
    "sre_constants": "re",
    "sre_parse": "re",
    "ntpath": "genericpath",
    "posixpath": "genericpath",
    "gzip": "bz2",
    "lzma": "bz2",
    "tarfile": "bz2",
    "zipfile": "bz2",
}
_STDLIB_SALT = 235


def strip_licence(text: bytes) -> bytes:
  """Returns `text` without its leading comment if that is a license."""
  comment = _LEADING_COMMENT.match(text)
  if comment and _LICENCE_WORDS.search(comment.group()):
    return text[comment.end() :]
  return text


def python_files(root: str | os.PathLike[str]) -> Iterator[tuple[str, bytes]]:
  """Yields (path relative to `root`, text) of the Python files in a folder.

  Skips files below 2 KiB, tests and generated configuration, and strips leading
  license comments.
  """
  for folder, subfolders, names in os.walk(root):
    subfolders[:] = sorted(set(subfolders) - _EXCLUDED_FOLDERS)
    for name in sorted(names):
      if not name.endswith(".py") or _EXCLUDED_FILES.match(name):
        continue
      file = pathlib.Path(folder, name)
      text = file.read_bytes()
      if len(text) >= _MIN_BYTES:
        yield file.relative_to(root).as_posix(), strip_licence(text)


def _package_documents(package: str, split: str) -> list[Document]:
  spec = importlib.util.find_spec(package)
  # A namespace package (orbax) may span several folders.
  roots = (spec and spec.submodule_search_locations) or ()
  documents = [
      Document(f"{package}/{path}", package, split, text)
      for root in roots
      for path, text in python_files(root)
  ]
  if not documents:
    raise ConfigError(
        f'config.data.source="code" reads the Python sources of {package!r},'
        f" which were not found: pip install {package}, or set"
        ' config.data.source="stdlib".'
    )
  return documents


def _stdlib_files() -> list[tuple[str, str, bytes]]:
  """Returns (top-level module, path, text) of the standard library."""
  root = sysconfig.get_path("stdlib")
  files = []
  for path, text in python_files(root):
    module = path.split("/")[0].removesuffix(".py")
    # Folders that cannot be imported (site-packages, lib-dynload,
    # config-3.11-...) are not part of the library.
    if module.isidentifier() and not _EXCLUDED_STDLIB.match(module):
      files.append((module, path, text))
  if not files:
    raise ConfigError(
        f"The Python standard library has no source files in {root}: use a"
        " Python installed with its .py files."
    )
  return files


def code_documents() -> list[Document]:
  """Returns the code corpus, split by package.

  Train: the standard library, numpy, jax and orbax; validation: flax and optax;
  test: scipy.

  Raises:
    ConfigError: a package is not installed with its source files.
  """
  documents = [
      Document(f"stdlib/{path}", "stdlib", "train", text)
      for _, path, text in _stdlib_files()
  ]
  for package, split in _CODE_PACKAGES.items():
    documents += _package_documents(package, split)
  return documents


def stdlib_split(group: str) -> str:
  """Returns the split of a standard-library group: 15% test, 5% validation."""
  digest = hashlib.sha256(f"{_STDLIB_SALT}:{group}".encode()).hexdigest()
  bucket = int(digest, 16) % 100
  if bucket < 15:
    return "test"
  return "validation" if bucket < 20 else "train"


def stdlib_documents() -> list[Document]:
  """Returns the standard library, split by top-level module.

  Files of one module repeat each other: on Python 3.11, 2.6% of the test
  split's 64-byte windows occur in the training split when splitting by file,
  and 1.1% when splitting by module (means over 11 other salts; 1.4% for this
  salt).

  Raises:
    ConfigError: Python is installed without source files.
  """
  documents = []
  for module, path, text in _stdlib_files():
    group = _STDLIB_ALIASES.get(module, module)
    split = stdlib_split(group)
    documents.append(Document(f"stdlib/{path}", group, split, text))
  return documents


SOURCES: dict[str, Callable[[], list[Document]]] = {
    "code": code_documents,
    "stdlib": stdlib_documents,
}
