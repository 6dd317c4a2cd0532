import gzip
import hashlib
import json
import resource
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds

from dape_jax import data, locking
from dape_jax.data import preparation, tfds_sources
from dape_jax.data.preparation import Job, held_out_split
from dape_jax.data.shards import BLOCK_SIZE
from dape_jax.data.text_files import TextFile
from dape_jax.errors import ConfigError

_SHARD = 2 * BLOCK_SIZE
_FRACTIONS = {"test": 0.1, "validation": 0.1}


def _texts(count, seed=0):
  rng = np.random.default_rng(seed)
  texts = [
      f"document {i} " + "abcdefg "[: 1 + i % 8] * int(rng.integers(1, 200))
      for i in range(count)
  ]
  texts[7] = "long " * 6000  # over several shards
  return texts


def _lines(texts):
  return b"".join(json.dumps({"text": t}).encode() + b"\n" for t in texts)


@pytest.fixture
def files(tmp_path):
  texts = _texts(300)
  (tmp_path / "a.jsonl").write_bytes(_lines(texts[:150]))
  (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(_lines(texts[150:299])))
  (tmp_path / "c.txt").write_text(texts[299])
  return [tmp_path / name for name in ("a.jsonl", "b.jsonl.gz", "c.txt")]


def _job(files, folder, **changes):
  settings = dict(
      folder=folder,
      tokenizer=data.ByteTokenizer(),
      sources={"train": [TextFile(file, "text") for file in files]},
      held_out=_FRACTIONS,
      shard_tokens=_SHARD,
      journal_seconds=0.0,
  )
  return Job(**settings | changes)


def _documents(corpus, name):
  split = corpus.split(name)
  return {
      split.name(i): corpus.tokenizer.decode(split.tokens[begin:end])
      for i, (begin, end) in enumerate(
          zip(split.starts[:-1].tolist(), split.starts[1:].tolist())
      )
  }


def _hashes(folder):
  return {
      str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).digest()
      for file in folder.rglob("*")
      if file.is_file()
  }


def test_every_document_is_in_its_split_under_its_name(files, tmp_path):
  manifest = preparation.run(_job(files, tmp_path / "out"))
  corpus = data.open_folder(tmp_path / "out")
  expected = {name: {} for name in corpus.splits}
  for i, text in enumerate(_texts(300)):
    source = files[0 if i < 150 else 1 if i < 299 else 2]
    name = f"{source}:{i % 150 + 1}" if i < 299 else str(source)
    split = held_out_split(text.encode(), _FRACTIONS)
    expected[split][name] = text.encode()
  for name in corpus.splits:
    assert _documents(corpus, name) == expected[name]
    assert manifest["splits"][name]["documents"] == len(expected[name]) > 10
  assert len(manifest["splits"]["train"]["shards"]) > 4
  assert [s["documents"] for s in manifest["sources"]] == [150, 149, 1]
  assert tfds.builder_from_directory(corpus.folder).info.splits.keys() == set(
      corpus.splits
  )
  with pytest.raises(ValueError, match="read-only"):
    corpus.split("train").starts[0] = 1


def test_the_fingerprint_is_of_the_tokens(files, tmp_path):
  one = preparation.run(_job(files, tmp_path / "1"))
  moved = [file.rename(file.with_name(f"moved_{file.name}")) for file in files]
  assert (
      preparation.run(_job(moved, tmp_path / "2"))["fingerprint"]
      == one["fingerprint"]
  )
  other = preparation.run(_job(moved[::-1], tmp_path / "3"))
  assert other["fingerprint"] != one["fingerprint"]


# Dies at the nth time that a file is opened, renamed, cut or removed, as if by
# SIGKILL: what Python has not written yet is lost.
_KILLER = """
import os, random, sys
sys.path.insert(0, {tests!r})
from dape_jax.data import preparation
preparation._BATCH_BYTES = 3000
import pathlib, prepare_test as t
folder, files = pathlib.Path({out!r}), [pathlib.Path(f) for f in {files!r}]

def attempt(die_at):
  child = os.fork()
  if child:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
  seen = 0
  def hook(event, args):
    nonlocal seen
    if event in ("open", "os.rename", "os.remove", "shutil.rmtree"):
      seen += str(args[0]).startswith(str(folder))
      if seen == die_at:
        os._exit(9)
  sys.addaudithook(hook)
  preparation.run(t._job(files, folder))
  os._exit(0)

rng, deaths = random.Random(0), 0
while attempt(rng.randrange(20, 60)) == 9:
  deaths += 1
print(deaths)
"""


def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(files, tmp_path):
  preparation.run(_job(files, tmp_path / "whole"))
  tests = __file__.rpartition("/")[0]
  out = tmp_path / "killed"
  script = _KILLER.format(
      tests=tests, out=str(out), files=list(map(str, files))
  )
  done = subprocess.run(
      [sys.executable, "-c", script], capture_output=True, text=True, check=True
  )
  assert int(done.stdout) > 10, done.stderr
  assert _hashes(out) == _hashes(tmp_path / "whole")


def test_a_disk_that_is_full_is_told_and_then_it_goes_on(files, tmp_path):
  preparation.run(_job(files, tmp_path / "whole"))
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
  try:
    with pytest.raises(ConfigError, match=r"--output.*too large.*resume"):
      preparation.run(_job(files, tmp_path / "out"))
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  with pytest.raises(ConfigError, match="not finished"):
    data.open_folder(tmp_path / "out")
  preparation.run(_job(files, tmp_path / "out"))
  assert _hashes(tmp_path / "out") == _hashes(tmp_path / "whole")


def test_damage_is_refused_or_skipped_and_counted(files, tmp_path):
  with files[0].open("ab") as file:
    file.write(b'{"text": ""}\nnot json\n' + _lines(["the last"]))
  files[1].write_bytes(files[1].read_bytes()[:-20])
  job = _job(files, tmp_path / "out")
  with pytest.raises(ConfigError, match=rf"{files[0]}:152: not JSON"):
    preparation.run(job)
  job = _job(files, tmp_path / "out", on_error="skip")
  gz, txt = preparation.run(job)["sources"][1:]
  jsonl = preparation.run(job)["sources"][0]
  assert [jsonl[k] for k in ("documents", "empty", "skipped")] == [151, 1, 1]
  assert gz["skipped"] == 1 and 0 < gz["documents"] < 149
  assert txt["documents"] == 1


def test_a_folder_of_another_command_is_refused(files, tmp_path):
  out = tmp_path / "out"
  first = preparation.run(_job(files, out))
  assert preparation.run(_job(files, out)) == first
  for change, message in (
      ({"held_out": {"test": 0.2, "validation": 0.1}}, "held_out"),
      (
          {"sources": {"train": [TextFile(files[0], "text")]}},
          "3 sources, not 1",
      ),
  ):
    with pytest.raises(ConfigError, match=message):
      preparation.run(_job(files, out, **change))
  files[0].write_bytes(files[0].read_bytes() + b"\n")
  with pytest.raises(ConfigError, match=r"a\.jsonl.*not"):
    preparation.run(_job(files, out))
  with pytest.raises(ConfigError, match="other files in it"):
    preparation.run(_job(files, tmp_path))
  lock = tmp_path / "locked" / "unfinished"
  lock.mkdir(parents=True)
  with (
      locking.locked(lock / "lock", ""),
      pytest.raises(ConfigError, match="by another process"),
  ):
    preparation.run(_job(files, tmp_path / "locked"))


def test_splits_that_are_given_and_empty_ones(files, tmp_path):
  texts = [TextFile(file, "text") for file in files]
  given = {"train": texts[:1], "validation": texts[1:2], "test": texts[2:]}
  job = _job(files, tmp_path / "out", sources=given, held_out={})
  splits = preparation.run(job)["splits"]
  assert [splits[n]["documents"] for n in given] == [150, 149, 1]
  nothing = {"test": 0.0, "validation": 0.1}
  with pytest.raises(ConfigError, match=r"held out for test.*--test=FILES"):
    preparation.run(_job(files, tmp_path / "none", held_out=nothing))


def test_held_out_fractions_and_equal_documents():
  texts = [str(i).encode() for i in range(4000)]
  splits = [held_out_split(t, {"test": 0.1, "validation": 0.2}) for t in texts]
  assert splits == [
      held_out_split(t, {"test": 0.1, "validation": 0.2}) for t in texts
  ]
  assert abs(splits.count("test") - 400) < 80
  assert abs(splits.count("validation") - 800) < 100


class DapeJaxTestNovels(tfds.core.GeneratorBasedBuilder):
  VERSION = tfds.core.Version("1.2.0")

  def _info(self):
    features = {"book_text": tfds.features.Text(), "year": np.int64}
    return tfds.core.DatasetInfo(
        builder=self, features=tfds.features.FeaturesDict(features)
    )

  def _split_generators(self, dl_manager):
    return {
        "train": self._generate_examples(0),
        "test": self._generate_examples(1),
    }

  def _generate_examples(self, seed):
    for i, text in enumerate(_texts(300, seed)):
      yield i, {"book_text": f"{seed} {text}", "year": i}


@pytest.fixture(scope="module")
def novels(tmp_path_factory):
  folder = str(tmp_path_factory.mktemp("tfds"))
  builder = DapeJaxTestNovels(data_dir=folder, file_format="array_record")
  builder.download_and_prepare()
  return folder


def test_datasets_are_read_with_their_own_splits(novels, tmp_path, no_network):
  splits = tfds_sources.open_dataset(
      "dape_jax_test_novels", novels, "book_text"
  )
  assert splits.keys() == {"train", "test"}
  job = _job(
      [],
      tmp_path / "out",
      sources={name: [split] for name, split in splits.items()},
      held_out={"validation": 0.1},
  )
  sources = preparation.run(job)["sources"]
  assert [s["documents"] for s in sources] == [300, 300]
  corpus = data.open_folder(tmp_path / "out")
  test = _documents(corpus, "test")
  assert sorted(test.values()) == sorted(
      f"1 {text}".encode() for text in _texts(300, 1)
  )
  source = f"{splits['test'].name}"
  assert source == "dape_jax_test_novels/1.2.0 test"
  assert list(test)[4] == f"{source}:5"
  records = list(splits["train"].records(290))
  assert [r.number for r in records] == list(range(291, 301))
  assert "tensorflow" not in sys.modules


def test_datasets_that_cannot_be_read_say_how(novels, tmp_path, no_network):
  for name, folder, field, message in (
      ("pg19", str(tmp_path), "text", r"tfds-prepare.*'pg19'.*array_record"),
      ("dape_jax_test_novels", novels, "text", r'text_field.*"book_text"'),
      ("dape_jax_test_novels", "gs://x", "text", "copy it to this machine"),
  ):
    with pytest.raises(ConfigError, match=message):
      tfds_sources.open_dataset(name, folder, field)
