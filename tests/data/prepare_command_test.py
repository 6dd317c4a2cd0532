import json
import pathlib
import subprocess
import sys

import pytest

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
  commands = {
      "first": [out, train, *held_out],
      "again": [out, train, *held_out],
      "another": [out, train],
      "verify": [out, "--verify"],
      "verify_flag": [out, "--verify", train],
      "bad": [
          f"--output={folder}/bad",
          f"--train={folder}/bad.jsonl",
          *held_out,
      ],
      "skip": [
          f"--output={folder}/bad",
          f"--train={folder}/bad.jsonl",
          *held_out,
          "--on_error=skip",
      ],
      "no_output": [train],
      "no_train": [out],
      "twice": [out, train, f"--test={folder}/*.jsonl"],
      "fraction": [
          out,
          train,
          f"--test={folder}/bad.jsonl",
          "--test_fraction=0.1",
      ],
      "tfds_files": [out, train, "--tfds=pg19"],
      "tfds_dir": [out, train, "--tfds_data_dir=x"],
      "tfds": [out, "--tfds=pg19", f"--tfds_data_dir={folder}"],
      "tokenizer": [out, train, "--tokenizer=byte"],
      "comma": ["--output=a,b", train],
      "left_over": [out, train, "b.jsonl"],
      "field": [out, train, *held_out, "--text_field=title"],
      "new_field": [
          f"--output={folder}/new",
          train,
          *held_out,
          "--text_field=title",
      ],
      "right_field": [f"--output={folder}/new", train, *held_out],
      "nothing_held_out": [
          f"--output={folder}/few",
          train,
          "--test_fraction=0",
      ],
      "all_held_out": [
          f"--output={folder}/few",
          train,
          "--test_fraction=0.5",
          "--validation_fraction=0.5",
      ],
      "none": [f"--output={folder}/none", f"--train={folder}/one.txt"],
      "all_damaged": [
          f"--output={folder}/damaged",
          train,
          "--text_field=title",
          "--on_error=skip",
      ],
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


def test_it_says_what_is_there_and_how_to_train(results):
  status, out, err = results["first"]
  assert status is None and "100%" in err
  assert "is prepared:" in out and "train: " in out and "documents" in out
  folder = results["folder"] / "out"
  assert f"--config.data.source={folder} --config.model.vocab_size=384" in out
  again = results["again"][1]
  assert "was already prepared" in again
  assert again.splitlines()[1:] == out.splitlines()[1:]
  assert (folder / "manifest.json").is_file()


def test_verify(results):
  status, out, _ = results["verify"]
  assert status is None and "all 11 files are intact" in out


def test_a_folder_in_which_nothing_was_written_takes_another_command(results):
  assert results["right_field"][0] is None
  assert "is prepared:" in results["right_field"][1]


def test_few_documents_are_told_before_they_are_read(results):
  assert "warning: 1 documents (one per .txt file)" in results["none"][2]


def test_skipped_documents_are_told(results):
  assert "bad.jsonl: 1 damaged documents skipped, 0 empty" in results["skip"][1]


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
        (
            "left_over",
            "unexpected argument 'b.jsonl': separate files with commas",
        ),
        ("field", "started by another command, with"),
        ("new_field", "no field 'title': set --text_field to one of text"),
        ("nothing_held_out", "--test_fraction=0 would leave nothing for test"),
        ("all_held_out", "leave nothing for train"),
        ("none", "None of the 1 documents was held out for val"),
        ("all_damaged", "All 200 documents were damaged"),
    ],
)
def test_refusals_are_one_line(results, name, message):
  status, out, err = results[name]
  assert status == 2 and not out
  last = err.strip().splitlines()[-1]
  assert last.startswith("prepare.py: error: ") and message in last
  assert "Traceback" not in err


def test_the_module_is_a_command():
  root = pathlib.Path(__file__).parents[2]
  done = subprocess.run(
      [sys.executable, "-m", "dape_jax.data.prepare", "--help"],
      capture_output=True,
      text=True,
      cwd=root,
  )
  assert done.returncode == 0 and "--on_error" in done.stdout
