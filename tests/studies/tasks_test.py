"""Flags of the command that trains and scores grids."""

import pathlib
import subprocess
import sys

import pytest
from refusals import assert_refused

ROOT = pathlib.Path(__file__).parents[2]
GRID = (
    "--config=configs/length_tasks.py",
    "--tasks=induction",
    "--encodings=nope,alibi",
    "--seeds=0",
    "--set=data.length=16",
    "--times=1,4",
)


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--samples=0", "samples"),
        ("--sample=1", "Did you mean --samples=1"),
        ("grid", "'grid' is not a flag; write --grid"),
        ("--output=x", "a grid needs --encodings=NAME,NAME and --output=DIR."),
        ("--encodings=rope", "a grid needs"),
        ("--tasks=cpoy", "task 'cpoy' is unknown. Did you mean \"copy\""),
        ("--tasks=copy,copy", "--tasks: copy is given twice."),
        ("--encodings=nope,nope", "--encodings: nope is given twice."),
        ("--seeds=0,1,00", "--seeds: 0 is given twice."),
        ("--seeds=-1", "--seeds: '-1' is not a whole number of at least 0."),
        (
            "--score=x --seeds=0",
            "--seeds is for a grid; --score is for one run.",
        ),
        ("--score=x --output=y", "--output is for a grid"),
        (
            "--score=no_such_run",
            "no_such_run does not exist; give the --workdir",
        ),
        ("--times=1 --lengths=2", "give either --lengths or --times."),
    ],
)
def test_wrong_flag_is_one_line_on_stderr(tasks_command, flags, message):
  result = tasks_command(*flags.split())
  assert_refused(result, message)
  assert result[2].count("\n") == 1


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--times=0", "--times: '0' is not a whole number of at least 1."),
        (
            "--times= --lengths=9-8",
            "--lengths: '8' is not a whole number of at",
        ),
        ("--times= --lengths=8-", "--lengths: '' is not a whole number"),
        ("--times= --lengths=2,8", "length=2 is too short for induction"),
        ("--encodings=ropee", 'unknown encoding "ropee". Did you mean "rope"'),
        ("--seeds=0,4294967296", "config.seed=4294967296"),
        ("--config=none.py", "--config=none.py does not exist."),
        ("--config=configs/demo.py", "--config=configs/demo.py:task="),
        (
            "--config=pyproject.toml",
            "--config=pyproject.toml is not a Python file.",
        ),
        ("--config={tmp}/c.py", "encoding=nope: RuntimeError: no ("),
        ("--set=seed=1", "--set=seed=1: use --seeds instead."),
        ("--set=model.encoding=rope", "use --encodings instead."),
        ("--set=train.steps", "write SECTION.SETTING=VALUE."),
        ("--set=train.stepz=1", "config.train.stepz is not a setting. Did you"),
        ("--set=train.steps=many", "--set=train.steps=many:"),
        ("--set=train.steps=0", "config.train.steps=0: must be greater"),
        (
            "--set=train.max_position=60",
            "rows of 64 tokens, but config.train.max",
        ),
        (
            "--encodings=learned --set=model.encoding_options.max_length=32",
            'rows of 64 tokens of induction: encoding "learned" ends at 32',
        ),
        ("--output={tmp}/c.py", "c.py/induction/nope/seed0 cannot be written"),
    ],
)
def test_invalid_setting_is_reported_before_training(
    tasks_command, tmp_path, flags, message
):
  (tmp_path / "c.py").write_text(
      "def get_config(_):\n  raise RuntimeError('no')"
  )
  folder = tmp_path / "runs"
  flags = flags.format(tmp=tmp_path).split()
  assert_refused(tasks_command(*GRID, f"--output={folder}", *flags), message)
  assert not folder.exists()


def test_help_lists_tasks():
  done = subprocess.run(
      [sys.executable, "-m", "dape_jax.studies.tasks", "--help"],
      cwd=ROOT,
      capture_output=True,
      text=True,
  )
  assert done.returncode == 0
  assert "Tasks: even_pairs, modular_arithmetic" in done.stdout
  assert "--encodings" in done.stdout
