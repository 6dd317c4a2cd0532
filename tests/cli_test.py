"""Scripts refuse bad flags in one line with exit status 2."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def run(command, tmp_path):
  arguments = command.format(tmp=tmp_path).split()
  return arguments[0], subprocess.run(
      [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True
  )


@pytest.mark.parametrize(
    "text, message",
    [
        ("def get_config(:", "SyntaxError"),
        ("def get_config():\n  return dict(seed=1)", "ConfigDict"),
        ("def get_config():\n  raise RuntimeError('no')", "RuntimeError: no ("),
        ("def get_config():\n  return {}['x']", "KeyError: 'x' ("),
    ],
)
def test_broken_config_files(text, message, tmp_path):
  (tmp_path / "c.py").write_text(text)
  _, done = run("train.py --config={tmp}/c.py --workdir={tmp}/run", tmp_path)
  assert done.returncode == 2
  assert done.stderr.count("\n") == 1
  assert "Traceback" not in done.stderr
  assert message in done.stderr


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
        (
            "train.py --config=configs/demo.py:dape_kerpel --workdir={tmp}",
            'error: unknown encoding "dape_kerpel". Did you mean'
            ' "dape_kerple_log"?',
        ),
        (
            "train.py --config=configs/demo.py --workdir={tmp} train.steps=1",
            "'train.steps=1' is not a flag; write --train.steps=1",
        ),
        (
            "train.py --config=configs/demo.py --workdir=gs://bucket/run",
            "--workdir=gs://bucket/run: Please install gcsfs",
        ),
        (
            "train.py --config=configs/demo.py --workdir={tmp}"
            " --config.model.widht=3",
            "error: 'widht' Did you mean",
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
  script, done = run(command, tmp_path)
  assert done.returncode == 2
  assert done.stdout == ""
  assert done.stderr.startswith(f"{script}: error: ")
  assert done.stderr.count("\n") == 1
  assert message.replace("\n", " ") in done.stderr
  assert "Traceback" not in done.stderr


def test_output_that_nobody_reads():
  script = "from dape_jax import cli; cli.run(lambda _: print('text'), ['x'])"
  with subprocess.Popen(
      [sys.executable, "-c", script],
      cwd=ROOT,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
  ) as process:
    process.stdout.close()
    assert process.wait() == 141
    assert not process.stderr.read()
