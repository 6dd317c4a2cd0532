"""Scripts refuse bad flags in one line with exit status 2."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize(
    "command, message",
    [
        (
            "train.py --config=configs/demo.py:ropee --workdir={tmp}",
            'unknown encoding "ropee". Did you mean "rope"?',
        ),
        (
            "train.py --config=configs/demo.py --workdir={tmp}"
            " --config.train.stepz=3",
            'Did you mean "steps"',
        ),
        (
            "train.py --config=configs/demo.py --workdir={tmp}"
            " --config.model.num_heads=3",
            "does not divide config.model.width=128",
        ),
        ("train.py --workdir={tmp}", "--config must have a value"),
        (
            "train.py --config=configs/none.py --workdir={tmp}",
            "configs/none.py",
        ),
        ("eval.py --chekpoint={tmp}", "chekpoint"),
        (
            "eval.py --checkpoint={tmp}/none --lengths=128",
            "none does not exist; give the --workdir of a training run.",
        ),
        ("eval.py --checkpoint={tmp} --lengths=128,-256", "-256"),
    ],
)
def test_bad_flags(command, message, tmp_path):
  arguments = command.format(tmp=tmp_path).split()
  done = subprocess.run(
      [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True
  )
  assert done.returncode == 2
  assert done.stdout == ""
  assert done.stderr.startswith(f"{arguments[0]}: error: ")
  assert done.stderr.count("\n") == 1
  assert message.replace("\n", " ") in done.stderr
