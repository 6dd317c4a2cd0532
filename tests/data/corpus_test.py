import dataclasses
import multiprocessing
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds

from dape_jax import data
from dape_jax.data import builders, preparation
from dape_jax.errors import ConfigError


def _texts(split):
  return [
      (split.name(i), split.tokens[split.starts[i] : split.starts[i + 1]])
      for i in range(split.num_documents)
  ]


def test_whole_chain_is_byte_exact_offline_and_without_tensorflow(
    documents, tmp_path, no_network, capfd
):
  corpus = data.open_corpus(documents, "synthetic", data_dir=tmp_path)

  tokenizer = corpus.tokenizer
  seen = {}
  for name in corpus.splits:
    split = corpus.split(name)
    assert isinstance(split.tokens, np.memmap)
    assert split.tokens.dtype == np.uint16
    assert split.starts.dtype == np.int64
    assert split.starts[-1] == split.tokens.size
    for path, tokens in _texts(split):
      assert tokens[-1] == tokenizer.eos
      assert tokenizer.decode(tokens[:-1]) == tokenizer.decode(tokens)
      seen[path] = (name, tokenizer.decode(tokens))
  assert seen == {d.path: (d.split, d.text) for d in documents}
  assert "tensorflow" not in sys.modules
  printed = capfd.readouterr()
  assert printed.out == ""
  assert "BuilderConfig" not in printed.err
  assert not list(tmp_path.glob(".*")), "temporary folders are left"


def test_datasets_open_from_where_the_corpus_lies(documents, corpus):
  folder = next(corpus.folder.glob("tfds/dape_jax_documents/*/*"))
  assert corpus.fingerprint in folder.parent.name
  source = tfds.builder_from_directory(folder).as_data_source("test")
  test = [d for d in documents if d.split == "test"]
  assert [source[i]["text"] for i in range(len(source))] == [
      d.text for d in test
  ]


def test_blocks_join_to_the_stream():
  tokenizer = data.ByteTokenizer()
  texts = [b"a" * (builders.BLOCK_SIZE - 1), b"b", b"c" * 200_000]
  blocks = list(builders.token_blocks(texts, tokenizer))
  assert all(b["tokens"].size == builders.BLOCK_SIZE for b in blocks[:-1])
  tokens = np.concatenate([b["tokens"] for b in blocks])
  assert tokenizer.decode(tokens) == b"".join(texts)
  starts = [
      i * builders.BLOCK_SIZE + s
      for i, block in enumerate(blocks)
      for s in block["document_starts"]
  ]
  assert starts == [0, builders.BLOCK_SIZE, builders.BLOCK_SIZE + 2]


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


def test_duplicates_are_kept_in_the_earliest_split_only(documents, tmp_path):
  train, test = documents[0], documents[-1]
  copy = dataclasses.replace(test, path="copy.py", text=train.text)
  corpus = data.open_corpus([*documents, copy], "synthetic", data_dir=tmp_path)
  paths = [entry["path"] for entry in corpus.manifest]
  assert train.path in paths and "copy.py" not in paths


def test_documents_must_be_complete(documents, tmp_path):
  for wrong, message in (
      (documents[:40], "no document in its validation split"),
      ([*documents, documents[0]], "path 'pkg/00.py'"),
      ([dataclasses.replace(documents[0], split="dev")], "split 'dev'"),
  ):
    with pytest.raises(ConfigError, match=message):
      data.open_corpus(wrong, "synthetic", data_dir=tmp_path)


def test_processes_may_prepare_at_once(documents, tmp_path):
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


def test_a_slower_process_takes_the_result_of_a_faster_one(
    documents, tmp_path, monkeypatch
):
  write = preparation._write

  def slow_write(*args):
    write(*args)
    monkeypatch.setattr(preparation, "_write", write)
    data.open_corpus(documents, "synthetic", data_dir=tmp_path)

  monkeypatch.setattr(preparation, "_write", slow_write)
  corpus = data.open_corpus(documents, "synthetic", data_dir=tmp_path)
  assert [corpus.folder] == list(tmp_path.iterdir())


def _truncate(file):
  file.write_bytes(file.read_bytes()[:-2])


def _flip_a_byte(file):
  contents = bytearray(file.read_bytes())
  contents[-5] ^= 1
  file.write_bytes(contents)


@pytest.mark.parametrize(
    "damage", [_truncate, _flip_a_byte, lambda f: f.unlink()]
)
@pytest.mark.parametrize(
    "name",
    ["train.tokens.npy", "test.starts.npy", "manifest.json", "checksums.json"],
)
def test_damage_is_reported_with_the_folder_to_delete(
    documents, corpus, damage, name
):
  file = corpus.folder / name
  contents = file.read_bytes()
  try:
    damage(file)
    with pytest.raises(ConfigError, match="damaged") as error:
      data.open_corpus(documents, "synthetic", data_dir=corpus.folder.parent)
  finally:
    file.write_bytes(contents)
  assert f"Delete the folder {corpus.folder}" in str(error.value)


def test_a_folder_that_cannot_be_written_names_the_setting(documents, tmp_path):
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
