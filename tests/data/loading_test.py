import json
import pathlib

import byte_bpe
import numpy as np
import pytest

from dape_jax import data
from dape_jax.checkpoint import runs
from dape_jax.config import DataConfig
from dape_jax.config.dicts import experiment_from_dict, experiment_to_dict
from dape_jax.data import preparation, sources
from dape_jax.data.preparation import Job
from dape_jax.data.text_files import TextFile
from dape_jax.errors import ConfigError
from dape_jax.training.run import make_batches


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
  path = str(tmp_path_factory.mktemp("bpe") / "tiny.json")
  byte_bpe.train("def main(): return\n" * 9, vocab_size=280).save(path)
  return path


def _prepare(folder, tokenizer, letter):
  folder.mkdir()
  files = []
  for split in ("train", "validation", "test"):
    files.append(folder / f"{split}.txt")
    files[-1].write_text(f"def {letter}(): return {split}\n" * 60)
  by_split = {f.stem: [TextFile(f, "text")] for f in files}
  made = data.make_tokenizer(tokenizer)
  preparation.run(Job(folder / "out", made, by_split, held_out={}))
  return str(folder / "out")


@pytest.fixture(scope="module")
def folders(bpe, tmp_path_factory):
  root = tmp_path_factory.mktemp("folders")
  return {
      name: _prepare(root / name, tokenizer, name[-1])
      for name, tokenizer in (
          ("bpe_a", bpe),
          ("bpe_b", bpe),
          ("bytes", "bytes"),
      )
  }


@pytest.fixture
def code(documents, monkeypatch, tmp_path):
  texts = [
      data.Document(d.path, d.group, d.split, b"def main(): %d\n" % i * 40)
      for i, d in enumerate(documents)
  ]
  monkeypatch.setitem(sources.SOURCES, "code", lambda: texts)
  monkeypatch.setenv("DAPE_JAX_DATA", str(tmp_path / "builtin"))


def test_folder_has_its_own_tokenizer(folders, bpe, no_network):
  corpus = data.load_corpus(folders["bpe_a"])
  assert corpus.tokenizer.sha256 == data.make_tokenizer(bpe).sha256
  assert pathlib.Path(corpus.tokenizer.location).parent.parent == corpus.folder
  split = corpus.split("test")
  assert split.tokens[-1:] == [corpus.tokenizer.eos]
  assert split.name(np.int64(0)).endswith("test.txt")
  assert corpus.tokenizer.decode(split.tokens[:]) == (
      b"def a(): return test\n" * 60
  )
  assert corpus.fingerprint.endswith(f"-{corpus.tokenizer.sha256[:8]}")
  assert data.load_corpus(folders["bpe_a"], bpe).folder == corpus.folder
  with pytest.raises(ConfigError, match="prepared with another tokenizer"):
    data.load_corpus(folders["bpe_a"], "bytes")
  with pytest.raises(ConfigError, match="prepared with another tokenizer"):
    data.load_corpora(f"{folders['bpe_a']},{folders['bytes']}")


def test_built_in_corpora_use_the_tokenizer_of_the_folders(folders, bpe, code):
  corpora = data.load_corpora(f"code,{folders['bpe_a']}")
  assert len({c.tokenizer.sha256 for c in corpora}) == 1
  plain = data.load_corpus("code")
  assert plain.tokenizer.name == "bytes"
  content, _, suffix = corpora[0].fingerprint.partition("-")
  assert content == plain.fingerprint and suffix
  assert data.load_corpus("code", bpe).folder == corpora[0].folder
  first = corpora[0].split("train")
  assert corpora[0].tokenizer.decode(first.tokens[: first.starts[1]]) == (
      b"def main(): 0\n" * 40
  )


def test_settings_are_checked(folders, bpe):
  mixed = f"{folders['bpe_a']},{folders['bpe_b']}"
  assert DataConfig().tokenizer == "bytes"
  assert DataConfig(source=folders["bpe_a"]).tokenizer == ""
  config = DataConfig(source=mixed, weights=[3, 1])
  assert config.weights == (3.0, 1.0)
  for changes, message in (
      ({"source": "cod"}, r'config.data.source=.*"code".*\./NAME'),
      ({"source": "code,code"}, "given twice"),
      ({"source": mixed}, "config.data.weights.*2 numbers"),
      ({"weights": (1.0,)}, "config.data.weights.*0 numbers"),
      ({"source": mixed, "weights": (1.0, 0.0)}, "greater than 0"),
      ({"source": mixed, "weights": (1.0, "x")}, "tuple of numbers"),
  ):
    with pytest.raises(ConfigError, match=message):
      DataConfig(**changes)
  with pytest.raises(ConfigError, match="not a prepared folder"):
    data.load_corpus("./nowhere")


def _run(source, fingerprint, tokenizer=""):
  weights = (1.0, 1.0) if "," in source else ()
  settings = DataConfig(source=source, weights=weights, tokenizer=tokenizer)

  class Config:
    data = settings

  return runs.Run("run", pathlib.Path("run"), Config, None, 1, fingerprint)


def test_runs_are_evaluated_on_the_first_or_the_requested_corpus(
    folders, bpe, code
):
  a, b = folders["bpe_a"], folders["bpe_b"]
  source = f"code,{a}"
  trained_on = [c.fingerprint for c in data.load_corpora(source)]
  run = _run(source, ",".join(trained_on))
  open_ = lambda *args: runs.load_corpus_of([run], "", *args).fingerprint
  assert open_() == trained_on[0]
  assert open_(a) == trained_on[1]
  for other in (b, folders["bytes"]):
    with pytest.raises(ConfigError, match="--source"):
      open_(other)
  bytes_ = data.make_tokenizer("bytes")
  assert runs.load_tokenizer(run).sha256 == data.make_tokenizer(bpe).sha256
  assert runs.load_tokenizer(_run("code", "0" * 16)).name == bytes_.name


def test_another_tokenizer_is_refused(folders, bpe, tmp_path):
  fingerprint = data.load_corpus(folders["bpe_a"]).fingerprint
  assert runs.load_tokenizer(_run("code", fingerprint, bpe)).name == "tiny"
  with pytest.raises(ConfigError, match="restore that one"):
    runs.load_tokenizer(_run("code", fingerprint, "bytes"))
  with pytest.raises(ConfigError, match="restore that one"):
    runs.load_tokenizer(_run("code", "0" * 16, bpe))


def test_run_trains_on_a_mix_of_folders_and_resumes(folders):
  source = f"{folders['bpe_a']},{folders['bpe_b']}"
  values = {
      "model": {"vocab_size": 384, "num_heads": 2, "width": 16},
      "data": {"source": source, "weights": [3, 1], "length": 16},
      "train": {"batch_size": 8},
  }
  config = experiment_from_dict(values)
  stored = json.loads(json.dumps(experiment_to_dict(config)))
  assert experiment_from_dict(stored) == config
  train, validation = make_batches(config)
  again, _ = make_batches(config)
  again.check_state(train.data_state(3))
  for name, values_ in train[3].items():
    np.testing.assert_array_equal(again[3][name], values_)
  tokenizer = data.load_tokenizer(source, "", ())
  texts = [tokenizer.decode(row) for row in validation[0]["targets"]]
  letters = b"".join(texts)
  assert letters.count(b" a(") > letters.count(b" b(") > 0
  values["model"]["vocab_size"] = 128
  with pytest.raises(ConfigError, match=r"vocab_size=128 .* 'tiny'; use 384"):
    make_batches(experiment_from_dict(values))
