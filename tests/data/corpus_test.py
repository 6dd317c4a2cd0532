import dataclasses
import multiprocessing
import shutil
import subprocess
import sys

import numpy as np
import preparing
import pytest
import tensorflow_datasets as tfds

from dape_jax import data
from dape_jax.data import manifest as manifest_lib
from dape_jax.data.writer import CorpusWriter
from dape_jax.errors import ConfigError


def test_corpus_is_byte_exact_offline_and_without_tensorflow(
    documents, tmp_path, no_network, capfd
):
  corpus = data.open_corpus(documents, "synthetic", data_dir=tmp_path)
  seen = {}
  for name in corpus.splits:
    split = corpus.split(name)
    assert split.tokens.dtype == np.uint16
    assert isinstance(split.starts, np.memmap)
    assert split.starts.dtype == np.int64
    assert len(split.starts) == len(preparing.documents(corpus, name)) + 1
    assert split.starts[-1] == split.tokens.size
    ends = split.tokens[:][split.starts[1:] - 1]
    assert (ends == corpus.tokenizer.eos).all()
    for path, text in preparing.documents(corpus, name).items():
      seen[path] = (name, text)
  assert seen == {d.path: (d.split, d.text) for d in documents}
  assert "tensorflow" not in sys.modules
  printed = capfd.readouterr()
  assert printed.out == ""
  assert "BuilderConfig" not in printed.err
  assert not list(tmp_path.glob(".*")), "temporary folders remain"


def test_folder_is_a_tfds_dataset(corpus, no_network):
  builder = tfds.builder_from_directory(corpus.folder)
  for name in corpus.splits:
    split = corpus.split(name)
    source = builder.as_data_source(name)
    blocks = [source[i] for i in range(len(source))]
    tokens = np.concatenate([block["tokens"] for block in blocks])
    np.testing.assert_array_equal(tokens, split.tokens[:])
    starts = [
        begin + start
        for begin, block in zip(range(0, len(tokens), 4096), blocks)
        for start in block["document_starts"].tolist()
    ]
    assert starts == split.starts[:-1].tolist()
  assert "tensorflow" not in sys.modules


def test_manifest(documents, corpus):
  manifest = corpus.manifest
  assert manifest["fingerprint"] == corpus.fingerprint
  assert manifest["tokenizer"] == {
      "name": "bytes",
      "sha256": "",
      "vocab_size": 259,
      "files": [],
  }
  assert [s["name"] for s in manifest["sources"]] == [d.path for d in documents]
  for name in corpus.splits:
    entry = manifest["splits"][name]
    texts = [d.text for d in documents if d.split == name]
    assert entry["documents"] == len(texts)
    assert entry["bytes"] == sum(map(len, texts))
    assert entry["tokens"] == entry["bytes"] + len(texts)
  read = []
  files = manifest_lib.verify(corpus.folder, manifest, read.append)
  on_disk = [f for f in corpus.folder.rglob("*") if f.is_file()]
  assert files == len(on_disk) - 1  # the manifest itself
  assert sum(read) == manifest_lib.total_bytes(manifest)


def test_opening_again_reuses_the_folder(documents, corpus):
  before = (corpus.folder / "manifest.json").stat().st_mtime_ns
  again = data.open_corpus(
      reversed(documents), "synthetic", data_dir=corpus.folder.parent
  )
  assert again.folder == corpus.folder
  assert again.fingerprint == corpus.fingerprint
  assert (again.folder / "manifest.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("change", ["text", "path", "split", "group"])
def test_fingerprint_and_folder_change_with_a_document(
    documents, corpus, tmp_path, change
):
  value = {"text": b"x", "path": "new.py", "split": "test", "group": "new"}
  changed = dataclasses.replace(documents[0], **{change: value[change]})
  other = data.open_corpus(
      [changed, *documents[1:]], "synthetic", data_dir=tmp_path
  )
  assert other.fingerprint != corpus.fingerprint
  assert other.fingerprint in other.folder.name


def test_duplicates_stay_in_the_earliest_split_only(documents, tmp_path):
  train, test = documents[0], documents[-1]
  copy = dataclasses.replace(test, path="copy.py", text=train.text)
  corpus = data.open_corpus([*documents, copy], "synthetic", data_dir=tmp_path)
  paths = [entry["name"] for entry in corpus.manifest["sources"]]
  assert train.path in paths and "copy.py" not in paths


def test_invalid_documents_are_refused(documents, tmp_path):
  for wrong, message in (
      (documents[:40], "validation split of the corpus has no documents"),
      ([*documents, documents[0]], "path 'pkg/00.py'"),
      ([dataclasses.replace(documents[0], split="dev")], "split 'dev'"),
  ):
    with pytest.raises(ConfigError, match=message):
      data.open_corpus(wrong, "synthetic", data_dir=tmp_path)


@pytest.mark.soak
def test_concurrent_processes_share_one_folder(documents, tmp_path):
  context = multiprocessing.get_context("spawn")
  processes = [
      context.Process(
          target=data.open_corpus,
          args=(documents, "synthetic", "bytes", tmp_path),
      )
      for _ in range(3)
  ]
  for process in processes:
    process.start()
  for process in processes:
    process.join(120)
    assert process.exitcode == 0
  (folder,) = tmp_path.iterdir()
  corpus = data.open_corpus(documents, "synthetic", data_dir=tmp_path)
  assert corpus.folder == folder


def test_slower_process_uses_the_result_of_a_faster_one(
    documents, tmp_path, monkeypatch
):
  finish = CorpusWriter.finish

  def slow_finish(*args, **kwargs):
    finish(*args, **kwargs)
    monkeypatch.setattr(CorpusWriter, "finish", finish)
    data.open_corpus(documents, "synthetic", data_dir=tmp_path)

  monkeypatch.setattr(CorpusWriter, "finish", slow_finish)
  corpus = data.open_corpus(documents, "synthetic", data_dir=tmp_path)
  assert [corpus.folder] == list(tmp_path.iterdir())


def _truncate(file):
  file.write_bytes(file.read_bytes()[:-2])


_SHARD = "tokens-train.array_record-00000"


@pytest.fixture
def copied(corpus, tmp_path):
  return data.open_folder(shutil.copytree(corpus.folder, tmp_path / "copy"))


@pytest.mark.parametrize("damage", [_truncate, lambda f: f.unlink()])
@pytest.mark.parametrize("name", [_SHARD, "test.starts.npy", "manifest.json"])
def test_incomplete_folder_is_refused(copied, damage, name):
  damage(copied.folder / name)
  with pytest.raises(ConfigError) as error:
    data.open_folder(copied.folder)
  message = str(error.value)
  assert name in message or "not a prepared folder" in message
  assert str(copied.folder) in message


@pytest.mark.parametrize("name", [_SHARD, "test.origins.npy"])
def test_changed_byte_is_detected(copied, name):
  file = copied.folder / name
  contents = bytearray(file.read_bytes())
  contents[len(contents) // 2] ^= 1
  file.write_bytes(contents)
  corpus = data.open_folder(copied.folder)
  with pytest.raises(ConfigError, match=rf"contents of {name} changed"):
    manifest_lib.verify(copied.folder, copied.manifest, lambda size: None)
  if name == _SHARD:
    with pytest.raises(ConfigError, match="--verify") as error:
      corpus.split("train").tokens[:]
    assert str(file) in str(error.value)


def test_missing_shard_is_named(copied):
  tokens = copied.split("train").tokens
  (copied.folder / _SHARD).unlink()
  with pytest.raises(ConfigError, match=_SHARD):
    tokens[:1]


def test_another_version_is_refused(copied):
  manifest = copied.manifest | {"version": 1}
  manifest_lib.write_json(copied.folder / "manifest.json", manifest)
  with pytest.raises(ConfigError, match="version 1 of the format"):
    data.open_folder(copied.folder)


def test_slices_match_those_of_an_array(corpus):
  tokens = corpus.split("train").tokens
  array = tokens[:]
  assert array.size == tokens.size == len(tokens)
  for begin, end in (
      (0, 0),
      (0, 1),
      (4095, 4097),
      (4096, 8192),
      (5, 20_000),
      (-3, None),
      (None, -tokens.size + 2),
      (9, 4),
      (tokens.size - 1, tokens.size + 5),
  ):
    np.testing.assert_array_equal(tokens[begin:end], array[begin:end])
  with pytest.raises(ValueError, match="step 2"):
    tokens[::2]


def test_unwritable_data_dir_names_the_setting(documents, tmp_path):
  file = tmp_path / "file"
  file.write_text("")
  with pytest.raises(ConfigError, match=r"config.data.dir"):
    data.open_corpus(documents, "synthetic", data_dir=file / "below")
  with pytest.raises(ConfigError, match="local folder"):
    data.open_corpus(documents, "synthetic", data_dir="gs://bucket/data")


def test_data_dir_from_the_environment(documents, tmp_path, monkeypatch):
  monkeypatch.setenv("DAPE_JAX_DATA", str(tmp_path))
  corpus = data.open_corpus(documents, "synthetic")
  assert corpus.folder.parent == tmp_path


def test_unknown_names_suggest_the_nearest(corpus, tmp_path):
  with pytest.raises(ConfigError, match=r'config.data.source.*"stdlib"'):
    data.load_corpus("stdlibs", data_dir=tmp_path)
  with pytest.raises(ConfigError, match=r"config.data.tokenizer"):
    data.load_corpus("code", "bpe", data_dir=tmp_path)
  with pytest.raises(ConfigError, match="validation"):
    corpus.split("valid")


def test_import_is_light():
  code = (
      "import sys, dape_jax.data; print([m for m in ('grain', 'tensorflow',"
      " 'tensorflow_datasets') if m in sys.modules])"
  )
  result = subprocess.run(
      [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert result.stdout.strip() == "[]"
