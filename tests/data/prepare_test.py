import gzip
import hashlib
import pathlib
import resource
import subprocess
import sys

import preparing
import pytest
import tensorflow_datasets as tfds

from dape_jax import data, locking
from dape_jax.data import preparation
from dape_jax.data.preparation import held_out_split
from dape_jax.data.text_files import TextFile
from dape_jax.errors import ConfigError


@pytest.fixture
def files(tmp_path):
  texts = preparing.texts(300)
  (tmp_path / "a.jsonl").write_bytes(preparing.lines(texts[:150]))
  (tmp_path / "b.jsonl.gz").write_bytes(
      gzip.compress(preparing.lines(texts[150:299]))
  )
  (tmp_path / "c.txt").write_text(texts[299])
  return [tmp_path / name for name in ("a.jsonl", "b.jsonl.gz", "c.txt")]


def _hashes(folder):
  return {
      str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).digest()
      for file in folder.rglob("*")
      if file.is_file()
  }


def test_documents_have_their_splits_and_names(files, tmp_path):
  manifest = preparation.run(preparing.job(files, tmp_path / "out"))
  corpus = data.open_folder(tmp_path / "out")
  expected = {name: {} for name in corpus.splits}
  for i, text in enumerate(preparing.texts(300)):
    source = files[0 if i < 150 else 1 if i < 299 else 2]
    name = f"{source}:{i % 150 + 1}" if i < 299 else str(source)
    split = held_out_split(text.encode(), preparing.FRACTIONS)
    expected[split][name] = text.encode()
  for name in corpus.splits:
    assert preparing.documents(corpus, name) == expected[name]
    assert manifest["splits"][name]["documents"] == len(expected[name]) > 10
  assert len(manifest["splits"]["train"]["shards"]) > 4
  assert [s["documents"] for s in manifest["sources"]] == [150, 149, 1]
  assert tfds.builder_from_directory(corpus.folder).info.splits.keys() == set(
      corpus.splits
  )
  with pytest.raises(ValueError, match="read-only"):
    corpus.split("train").starts[0] = 1


def test_fingerprint_depends_on_tokens_only(files, tmp_path):
  one = preparation.run(preparing.job(files, tmp_path / "1"))
  moved = [file.rename(file.with_name(f"moved_{file.name}")) for file in files]
  assert (
      preparation.run(preparing.job(moved, tmp_path / "2"))["fingerprint"]
      == one["fingerprint"]
  )
  other = preparation.run(preparing.job(moved[::-1], tmp_path / "3"))
  assert other["fingerprint"] != one["fingerprint"]


# Exits when the nth file is opened, renamed or removed, like SIGKILL: buffered
# writes are lost.
_KILLER = """
import os, random, sys
sys.path.insert(0, {support!r})
from dape_jax.data import preparation
preparation._BATCH_BYTES = 3000
import pathlib, preparing
folder, files = pathlib.Path({out!r}), [pathlib.Path(f) for f in {files!r}]

def attempt(exit_at):
  child = os.fork()
  if child:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
  seen = 0
  def hook(event, args):
    nonlocal seen
    if event in ("open", "os.rename", "os.remove", "shutil.rmtree"):
      seen += str(args[0]).startswith(str(folder))
      if seen == exit_at:
        os._exit(9)
  sys.addaudithook(hook)
  preparation.run(preparing.job(files, folder))
  os._exit(0)

rng, kills = random.Random(0), 0
while attempt(rng.randrange(20, 60)) == 9:
  kills += 1
print(kills)
"""


def test_resuming_after_kills_gives_the_same_bytes(files, tmp_path):
  preparation.run(preparing.job(files, tmp_path / "uninterrupted"))
  support = str(pathlib.Path(preparing.__file__).parent)
  out = tmp_path / "killed"
  script = _KILLER.format(
      support=support, out=str(out), files=list(map(str, files))
  )
  done = subprocess.run(
      [sys.executable, "-c", script], capture_output=True, text=True, check=True
  )
  assert int(done.stdout) > 10, done.stderr
  assert _hashes(out) == _hashes(tmp_path / "uninterrupted")


def test_full_disk_is_reported_and_preparation_resumes(files, tmp_path):
  preparation.run(preparing.job(files, tmp_path / "uninterrupted"))
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
  try:
    with pytest.raises(ConfigError, match=r"--output.*too large.*resume"):
      preparation.run(preparing.job(files, tmp_path / "out"))
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  with pytest.raises(ConfigError, match="not finished"):
    data.open_folder(tmp_path / "out")
  preparation.run(preparing.job(files, tmp_path / "out"))
  assert _hashes(tmp_path / "out") == _hashes(tmp_path / "uninterrupted")


def test_damage_is_refused_or_skipped_and_counted(files, tmp_path):
  with files[0].open("ab") as file:
    file.write(b'{"text": ""}\nnot json\n' + preparing.lines(["the last"]))
  files[1].write_bytes(files[1].read_bytes()[:-20])
  job = preparing.job(files, tmp_path / "out")
  with pytest.raises(ConfigError, match=rf"{files[0]}:152: not JSON"):
    preparation.run(job)
  job = preparing.job(files, tmp_path / "out", on_error="skip")
  gz, txt = preparation.run(job)["sources"][1:]
  jsonl = preparation.run(job)["sources"][0]
  assert [jsonl[k] for k in ("documents", "empty", "skipped")] == [151, 1, 1]
  assert gz["skipped"] == 1 and 0 < gz["documents"] < 149
  assert txt["documents"] == 1


def test_folder_of_another_command_is_refused(files, tmp_path):
  out = tmp_path / "out"
  first = preparation.run(preparing.job(files, out))
  assert preparation.run(preparing.job(files, out)) == first
  for change, message in (
      ({"held_out": {"test": 0.2, "validation": 0.1}}, "held_out"),
      (
          {"sources": {"train": [TextFile(files[0], "text")]}},
          "3 sources, not 1",
      ),
  ):
    with pytest.raises(ConfigError, match=message):
      preparation.run(preparing.job(files, out, **change))
  files[0].write_bytes(files[0].read_bytes() + b"\n")
  with pytest.raises(ConfigError, match=r"a\.jsonl.*not"):
    preparation.run(preparing.job(files, out))
  with pytest.raises(ConfigError, match="other files in it"):
    preparation.run(preparing.job(files, tmp_path))
  lock = tmp_path / "locked" / "unfinished"
  lock.mkdir(parents=True)
  with (
      locking.locked(lock / "lock", ""),
      pytest.raises(ConfigError, match="by another process"),
  ):
    preparation.run(preparing.job(files, tmp_path / "locked"))


def test_given_splits_and_empty_ones(files, tmp_path):
  texts = [TextFile(file, "text") for file in files]
  given = {"train": texts[:1], "validation": texts[1:2], "test": texts[2:]}
  job = preparing.job(files, tmp_path / "out", sources=given, held_out={})
  splits = preparation.run(job)["splits"]
  assert [splits[n]["documents"] for n in given] == [150, 149, 1]
  nothing = {"test": 0.0, "validation": 0.1}
  with pytest.raises(ConfigError, match=r"held out for test.*--test=FILES"):
    preparation.run(preparing.job(files, tmp_path / "none", held_out=nothing))


def test_held_out_fractions():
  texts = [str(i).encode() for i in range(4000)]
  splits = [held_out_split(t, {"test": 0.1, "validation": 0.2}) for t in texts]
  assert abs(splits.count("test") - 400) < 80
  assert abs(splits.count("validation") - 800) < 100
