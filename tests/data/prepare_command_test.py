import json
import pathlib
import subprocess
import sys

import pytest

# Runs several commands in one process, without pytest's flags.
_DRIVER = """
import contextlib, io, json, sys
from absl.testing import flagsaver
from dape_jax import cli
from dape_jax.data import prepare
results = []
for arguments in json.load(sys.stdin):
  out, err = io.StringIO(), io.StringIO()
  with flagsaver.flagsaver(), contextlib.redirect_stdout(out):
    with contextlib.redirect_stderr(err):
      try:
        cli.run(prepare.main, ["prepare.py", *arguments])
      except SystemExit as exit:
        results.append([exit.code, out.getvalue(), err.getvalue()])
print(json.dumps([results, "tensorflow" in sys.modules]))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
  """Status, output and errors of commands, all run in one process."""
  folder = tmp_path_factory.mktemp("prepare")
  texts = "".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(200))
  (folder / "train.jsonl").write_text(texts)
  (folder / "bad.jsonl").write_text(texts + "{")
  (folder / "one.txt").write_text("one document")
  train = f"--train={folder}/train.jsonl"
  out = f"--output={folder}/out"
  held_out = ["--test_fraction=0.1", "--validation_fraction=0.1"]
  to = lambda name: f"--output={folder}/{name}"
  bad, titles = f"--train={folder}/bad.jsonl", "--text_field=title"
  halves = ["--test_fraction=0.5", "--validation_fraction=0.5"]
  commands = {
      "first": [out, train, *held_out],
      "again": [out, train, *held_out],
      "another": [out, train],
      "verify": [out, "--verify"],
      "verify_flag": [out, "--verify", train],
      "bad": [to("bad"), bad, *held_out],
      "skip": [to("bad"), bad, *held_out, "--on_error=skip"],
      "no_output": [train],
      "no_train": [out],
      "twice": [out, train, f"--test={folder}/*.jsonl"],
      "fraction": [out, train, f"--test={folder}/bad.jsonl", *held_out],
      "tfds_files": [out, train, "--tfds=pg19"],
      "tfds_dir": [out, train, "--tfds_data_dir=x"],
      "tfds": [out, "--tfds=pg19", f"--tfds_data_dir={folder}"],
      "tokenizer": [out, train, "--tokenizer=byte"],
      "comma": ["--output=a,b", train],
      "left_over": [out, train, "b.jsonl"],
      "field": [out, train, *held_out, titles],
      "new_field": [to("new"), train, *held_out, titles],
      "right_field": [to("new"), train, *held_out],
      "nothing_held_out": [to("few"), train, "--test_fraction=0"],
      "all_held_out": [to("few"), train, *halves],
      "none": [to("none"), f"--train={folder}/one.txt"],
      "all_damaged": [to("damaged"), train, titles, "--on_error=skip"],
  }
  done = subprocess.run(
      [sys.executable, "-c", _DRIVER],
      input=json.dumps(list(commands.values())),
      capture_output=True,
      text=True,
      check=True,
  )
  found, tensorflow = json.loads(done.stdout)
  assert not tensorflow
  return dict(zip(commands, found, strict=True)) | {"folder": folder}


def test_output_describes_the_folder_and_how_to_train(results):
  status, out, err = results["first"]
  assert status is None and "100%" in err
  assert "is prepared:" in out and "train: " in out and "documents" in out
  folder = results["folder"] / "out"
  assert f"--config.data.source={folder} --config.model.vocab_size=384" in out
  again = results["again"][1]
  assert "was already prepared" in again
  assert again.splitlines()[1:] == out.splitlines()[1:]
  assert (folder / "manifest.json").is_file()


def test_notices(results):
  for name, message in (
      ("verify", "all 11 files are intact"),
      # Nothing was written for the command that failed before.
      ("right_field", "is prepared:"),
      ("skip", "bad.jsonl: 1 damaged documents skipped, 0 empty"),
  ):
    status, out, _ = results[name]
    assert status is None and message in out
  assert "warning: 1 documents (one per .txt file)" in results["none"][2]


@pytest.mark.parametrize(
    "name, message",
    [
        ("another", "started by another command, with held_out"),
        ("verify_flag", "--train does not apply to --verify"),
        ("bad", "bad.jsonl:201: not JSON"),
        ("no_output", "--output=DIR"),
        ("no_train", "--train=FILES or --tfds=NAME"),
        ("twice", "train.jsonl is given twice"),
        ("fraction", "--test_fraction needs a split that is held out"),
        ("tfds_files", "--tfds has its own splits"),
        ("tfds_dir", "--tfds_data_dir needs --tfds"),
        ("tfds", "dape_jax[tfds-prepare]"),
        ("tokenizer", "--tokenizer='byte' is unknown. Did you mean \"bytes\"?"),
        ("comma", "no commas"),
        ("left_over", "unexpected argument 'b.jsonl': separate files with"),
        ("field", "started by another command, with"),
        ("new_field", "no field 'title': set --text_field to one of text"),
        ("nothing_held_out", "--test_fraction=0 would leave nothing for test"),
        ("all_held_out", "leave nothing for train"),
        ("none", "None of the 1 documents was held out for val"),
        ("all_damaged", "All 200 documents were damaged"),
    ],
)
def test_errors_are_one_line(results, name, message):
  status, out, err = results[name]
  assert status == 2 and not out
  last = err.strip().splitlines()[-1]
  assert last.startswith("prepare.py: error: ") and message in last
  assert "Traceback" not in err


def test_module_is_a_command():
  root = pathlib.Path(__file__).parents[2]
  done = subprocess.run(
      [sys.executable, "-m", "dape_jax.data.prepare", "--help"],
      capture_output=True,
      text=True,
      cwd=root,
  )
  assert done.returncode == 0 and "--on_error" in done.stdout
