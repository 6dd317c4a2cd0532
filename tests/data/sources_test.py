import collections
import importlib.util
import itertools

import pytest

from dape_jax.data import documents as documents_lib
from dape_jax.data import sources
from dape_jax.errors import ConfigError

_BODY = b"x = 1\n" * 500


@pytest.fixture(scope="module")
def code():
  return documents_lib.ordered_unique(sources.code_documents())


@pytest.fixture(scope="module")
def stdlib():
  return documents_lib.ordered_unique(sources.stdlib_documents())


def test_python_files_skips_tests_short_and_generated_files(tmp_path):
  for name, text in {
      "b.py": _BODY,
      "a/c.py": b"# Copyright me\n#\n# more\n\n" + _BODY,
      "short.py": b"x = 1\n",
      "data.txt": _BODY,
      "tests/helper.py": _BODY,
      "a/test/helper.py": _BODY,
      "a/c_test.py": _BODY,
      "a/test_c.py": _BODY,
      "__config__.py": _BODY,
  }.items():
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(text)
  assert dict(sources.python_files(tmp_path)) == {
      "a/c.py": _BODY,
      "b.py": _BODY,
  }


@pytest.mark.parametrize(
    "text, expected",
    [
        (b"# SPDX-License-Identifier: MIT\nx = 1\n", b"x = 1\n"),
        (b"#!/usr/bin/env python\n\n# Licence: BSD\nx\n# y\n", b"x\n# y\n"),
        (b"# Just a remark.\nx = 1\n", b"# Just a remark.\nx = 1\n"),
        (b'"""Copyright."""\n# License\n', b'"""Copyright."""\n# License\n'),
    ],
)
def test_only_leading_license_comments_are_stripped(text, expected):
  assert sources.strip_licence(text) == expected


@pytest.mark.parametrize("name", ["code", "stdlib"])
def test_splits_share_no_text(name, request):
  documents = request.getfixturevalue(name)
  splits = collections.defaultdict(set)
  for document in documents:
    splits[document.split].add(document.text)
  assert sum(map(len, splits.values())) == len(documents)
  for one, other in itertools.combinations(splits.values(), 2):
    assert not one & other


def test_code_splits_and_sizes(code):
  groups, sizes = collections.defaultdict(set), collections.Counter()
  for document in code:
    groups[document.split].add(document.group)
    sizes[document.split] += len(document.text)
    assert document.path.startswith(f"{document.group}/")
  assert groups == {
      "train": {"stdlib", "numpy", "jax", "orbax"},
      "validation": {"flax", "optax"},
      "test": {"scipy"},
  }
  # Wide bounds: sizes follow the installed versions.
  assert 20e6 < sizes["train"] < 40e6
  assert 2e6 < sizes["validation"] < 5e6
  assert 9e6 < sizes["test"] < 16e6


def test_stdlib_excludes_other_folders(stdlib):
  tops = {
      document.path.split("/")[1].removesuffix(".py") for document in stdlib
  }
  assert {"argparse", "asyncio", "json"} <= tops
  assert not tops & {"site-packages", "idlelib", "encodings", "test"}
  assert not any(top.startswith("_sysconfigdata") for top in tops)


def test_stdlib_groups_share_a_split(stdlib):
  splits = collections.defaultdict(set)
  for document in stdlib:
    splits[document.group].add(document.split)
  assert all(len(found) == 1 for found in splits.values())
  groups = {document.path: document.group for document in stdlib}
  for module, group in (
      ("io", "_pyio"),
      ("posixpath", "genericpath"),
      ("tarfile", "bz2"),
  ):
    assert groups[f"stdlib/{module}.py"] == group


def test_stdlib_split_is_fixed():
  # Golden: may change only together with every published number.
  golden = {
      "asyncio": "train",
      "_pyio": "test",
      "_pydecimal": "train",
      "inspect": "test",
      "re": "validation",
      "mailbox": "validation",
  }
  assert {g: sources.stdlib_split(g) for g in golden} == golden


def test_sources_are_deterministic(code):
  again = documents_lib.ordered_unique(reversed(sources.code_documents()))
  assert again == code


def test_missing_package_is_named(monkeypatch):
  find_spec = importlib.util.find_spec
  monkeypatch.setattr(
      importlib.util,
      "find_spec",
      lambda name: None if name == "optax" else find_spec(name),
  )
  with pytest.raises(ConfigError, match="pip install optax"):
    sources.code_documents()
