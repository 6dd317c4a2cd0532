"""Commands reject invalid flags with a one-line error and exit status 2."""

import argparse
import pathlib
import subprocess
import sys

import pytest
from command_process import command_process

from dape_jax import cli
from dape_jax.errors import ConfigError

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def call():
  """Returns a function: script, flags -> status, stdout, stderr."""
  with (
      command_process("train.py", "train") as train,
      command_process("eval.py", "eval") as evaluate,
  ):
    calls = {"train.py": train, "eval.py": evaluate}
    yield lambda script, *flags: calls[script](*flags)


def assert_refused(script, result, message):
  status, out, err = result
  assert status == 2, err
  assert out == ""
  assert err.startswith(f"{script}: error: ") and err.count("\n") == 1
  assert message in err
  assert "Traceback" not in err


@pytest.mark.parametrize(
    "text, message",
    [
        ("def get_config(:", "SyntaxError"),
        ("def get_config():\n  return dict(seed=1)", "ConfigDict"),
        ("def get_config():\n  raise RuntimeError('no')", "RuntimeError: no ("),
        ("def get_config():\n  return {}['x']", "KeyError: 'x' ("),
        ("", "has no attribute 'get_config'"),
    ],
)
def test_broken_config_files(call, text, message, tmp_path):
  (tmp_path / "c.py").write_text(text)
  flags = f"--config={tmp_path}/c.py", f"--workdir={tmp_path}/run"
  assert_refused("train.py", call("train.py", *flags), message)


_TRAIN = "train.py --config=configs/demo.py --workdir={tmp}"


@pytest.mark.parametrize(
    "command, message",
    [
        (
            "train.py --config=configs/demo.py:dape_kerpel --workdir={tmp}",
            "error: --config=configs/demo.py:dape_kerpel: unknown encoding"
            ' "dape_kerpel". Did you mean "dape_kerple_log"?',
        ),
        (f"{_TRAIN} --config.data.batch_size=8", "is config.train.batch_size."),
        (
            f"{_TRAIN} --config.model.num_heads=3",
            "does not divide config.model.width=128",
        ),
        (f"{_TRAIN} --num_processes=1.5", "must be a whole number, got '1.5'"),
        (
            f"{_TRAIN} --wrkdir=x",
            "--wrkdir=x is not a flag. Did you mean --wor",
        ),
        (
            "train.py --config=configs/demo.py --workdir=gs://bucket/run",
            "--workdir=gs://bucket/run: Please install gcsfs",
        ),
        ("train.py --workdir={tmp}", "--config must have a value"),
        (
            "train.py --config=none.py --workdir={tmp}",
            "=none.py does not exist",
        ),
        (
            "train.py --config=Makefile --workdir={tmp}",
            "--config=Makefile is not a Python file",
        ),
        (
            "eval.py --chekpoint=a",
            "--chekpoint=a is not a flag. Did you mean --checkpoint=a? See"
            " eval.py --help.",
        ),
        (
            "eval.py --checkpoint={tmp} --lengths=128 --regions=1.5",
            "flag --regions=1.5: must be a whole number, got '1.5'",
        ),
        (
            "eval.py --checkpoint={tmp}/none --lengths=128 --regions=1e2",
            "none does not exist; give the --workdir of a training run.",
        ),
        ("eval.py --checkpoint={tmp} --lengths=128,-256", "-256"),
    ],
)
def test_wrong_flags(call, command, message, tmp_path):
  script, *flags = command.format(tmp=tmp_path).split()
  assert_refused(script, call(script, *flags), message)


def test_wrong_flag_in_a_process(tmp_path):
  flags = "--config=configs/demo.py", f"--workdir={tmp_path}", "--steps=3"
  done = subprocess.run(
      [sys.executable, "train.py", *flags],
      cwd=ROOT,
      capture_output=True,
      text=True,
  )
  result = done.returncode, done.stdout, done.stderr
  assert_refused("train.py", result, "--steps=3 is not a flag.")


@pytest.mark.parametrize(
    "flags, message",
    [
        (
            "--lenght=5",
            "--lenght=5 is not a flag. Did you mean --length=5. See",
        ),
        ("--xyz", r"--xyz is not a flag. See tool --help"),
        ("--length=1.5 --output=x", "must be a whole number, got '1.5'"),
        ("--length=0 --output=x", "0 is not a positive integer"),
        ("--length=1", r"required: --output \(see tool --help"),
    ],
)
def test_argument_parser(flags, message):
  parser = cli.ArgumentParser(prog="tool")
  parser.add_argument("--length", type=cli.whole_number_type(1))
  parser.add_argument("--output", required=True)
  with pytest.raises(ConfigError, match=message):
    parser.parse_args(flags.split())
  expected = argparse.Namespace(length=1000, output="--x")
  assert parser.parse_args(["--length=1e3", "--output=--x"]) == expected


def test_closed_output_ends_the_command():
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
