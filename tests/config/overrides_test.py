"""--config.SECTION.SETTING=VALUE: the values accepted, and the errors."""

import functools
import json
import operator

import pytest
from command_process import command_process


@pytest.fixture(scope="module")
def show():
  """Returns a function: flags -> status, stdout, stderr of a config command."""
  with command_process("show", "show_config") as call:
    yield functools.partial(call, "--config=configs/demo.py")


@pytest.mark.parametrize(
    "flags, path, expected",
    [
        ("--config.seed=3", "seed", 3),
        ("--config.train.steps=100", "train.steps", 100),
        ("--config.train.steps=1_000", "train.steps", 1000),
        ("--config.train.steps=1e3", "train.steps", 1000),
        ("--config.train.steps=1.5e1", "train.steps", 15),
        ("--config.train.steps=0x10", "train.steps", 16),
        ("--config.train.steps 7", "train.steps", 7),
        ("-config.train.steps=7", "train.steps", 7),
        ("--config.mesh.data -1", "mesh.data", -1),
        ("--config.train.steps=5 --config.train.steps=6", "train.steps", 6),
        ("--config.optimizer.clip_norm=2", "optimizer.clip_norm", 2.0),
        ("--config.optimizer.eps=1e-6", "optimizer.eps", 1e-6),
        ("--config.model.share_encoding", "model.share_encoding", True),
        ("--config.model.share_encoding=YES", "model.share_encoding", True),
        ("--config.model.share_encoding=1", "model.share_encoding", True),
        ("--noconfig.model.share_encoding", "model.share_encoding", False),
        ("--config.model.share_encoding=No", "model.share_encoding", False),
        ("--config.model.encoding='rope'", "model.encoding", "rope"),
        ("--config.data.tokenizer=", "data.tokenizer", "bytes"),
        ("--config.model.windows=(0,64)", "model.windows", [0, 64]),
        ("--config.model.windows=[0,64]", "model.windows", [0, 64]),
        ("--config.model.windows=0,6_4", "model.windows", [0, 64]),
        ("--config.model.windows=(5,)", "model.windows", [5]),
        ("--config.model.windows=5", "model.windows", [5]),
        (
            "--config.data.source=code,stdlib --config.data.weights=0.7,3e-1",
            "data.weights",
            [0.7, 0.3],
        ),
        ("--config.data.weights=()", "data.weights", []),
        (
            "--config.model.encoding_options.width=64",
            "model.encoding_options.width",
            64,
        ),
        (
            "--config.model.encoding_options={'width':6e1}",
            "model.encoding_options",
            {"width": 60},
        ),
        (
            '--config.model.encoding_options={"two_sided":true}',
            "model.encoding_options",
            {"two_sided": True},
        ),
        (
            "--config.model.encoding_options={}"
            " --config.model.encoding_options.rope_theta=1e3"
            " --config.model.encoding=rope",
            "model.encoding_options",
            {"rope_theta": 1000.0},
        ),
    ],
)
def test_overrides_set_the_value(show, flags, path, expected):
  status, out, err = show(*flags.split())
  assert status == 0, err
  value = functools.reduce(operator.getitem, path.split("."), json.loads(out))
  assert value == expected and type(value) is type(expected)


@pytest.mark.parametrize(
    "flag, message",
    [
        # Unknown settings.
        (
            "data.batch_size=8",
            "config.data.batch_size is not a setting; the setting is"
            " config.train.batch_size. Valid in config.data: dir, length,"
            " packing, source, tokenizer, weights.",
        ),
        ("train.seed=5", "is not a setting; the setting is config.seed. Valid"),
        (
            "batch_size=8",
            "the setting is config.train.batch_size. Valid in con",
        ),
        ("data.batchsize=8", "the setting is config.train.batch_size."),
        (
            "model.two_sided=1",
            "the setting is config.model.encoding_options.two_sided.",
        ),
        (
            "train.stepz=3",
            'stepz is not a setting. Did you mean "steps"? Valid',
        ),
        ("model.widht=3", 'Did you mean "width"? Valid: activation, causal,'),
        ("modle.width=3", 'Did you mean "model"? Valid: data, mesh, model,'),
        (
            "model=3",
            "config.model is a section; set one of its settings: activ",
        ),
        ("train.steps.foo=1", "config.train.steps is a setting, not a section"),
        ("=5", "config is a section; set one of its settings: data, mesh,"),
        (
            "model.encoding_options.widht=3",
            'Did you mean "width"? Valid: form,',
        ),
        ("model.encoding_options={'widht':3}", 'Did you mean "width"? Valid: '),
        # Values.
        ("train.steps=1.5", "must be a whole number, got '1.5'."),
        ("train.steps=1e-1", "must be a whole number, got '1e-1'."),
        ("train.steps=1,000", "must be a whole number, got '1,000'."),
        ("train.steps=many", "must be a whole number, got 'many'."),
        ("train.steps=None", "must be a whole number, got 'None'."),
        ("train.steps=true", "must be a whole number, got 'true'."),
        ("train.steps=", "must be a whole number, got ''."),
        ("train.steps", "needs a value: --config.train.steps=VALUE."),
        ("optimizer.eps=1/2", "must be a number, got '1/2'."),
        ("mesh.ring=maybe", "must be true or false, got 'maybe'."),
        ("model.windows=(1,2", "must be whole numbers such as (0,128), 0,128"),
        ("model.windows=1.5", "must be whole numbers such as"),
        ("model.windows=", "must be whole numbers such as"),
        ("data.weights=0.7,x", "must be numbers such as (0.7,0.3) or 0.7,0.3"),
        ("data.source=None", "must be text, got None; leave the value empty"),
        ("model.encoding=1e2", 'unknown encoding "1e2".'),
        ("model.encoding_options=64", "must be a dictionary such as {'width'"),
        (
            "model.encoding_options={'width':1.5}",
            "encoding_options.width must be a whole number, got '1.5'",
        ),
    ],
)
def test_wrong_overrides_are_one_line(show, flag, message):
  flag = f"--config.{flag}"
  status, out, err = show(flag)
  assert status == 2 and out == ""
  assert err.startswith(f"show: error: {flag}: ") and err.count("\n") == 1
  assert message in err


@pytest.mark.parametrize(
    "flags, message",
    [
        (
            "--noconfig.mesh.ring=1",
            "--noconfig.mesh.ring is for booleans, without",
        ),
        ("--noconfig.train.steps", "--noconfig.train.steps is for booleans"),
        (
            "--config.model.encoding_options.width=8"
            " --config.model.encoding_options={}",
            "{}: would replace --config.model.encoding_options.width=8, given",
        ),
        ("--config.mesh.ring", "config.mesh.ring=True: requires rows"),
        ("--config.train.steps=0", "config.train.steps=0: must be greater"),
        ("--confg=x", "--confg=x is not a flag. Did you mean --config=x? See"),
        ("--confg.train.steps=5", "Did you mean --config.train.steps=5? See"),
        ("--train.steps=5", "Did you mean --config.train.steps=5? See show --"),
        ("train.steps=5", "is not a flag; write --config.train.steps=5"),
    ],
)
def test_wrong_command_lines_are_one_line(show, flags, message):
  status, out, err = show(*flags.split())
  assert status == 2 and out == ""
  assert err.startswith("show: error: ") and err.count("\n") == 1
  assert message in err


def test_overrides_come_from_flag_files_and_end_with_the_flags(show, tmp_path):
  (tmp_path / "flags").write_text("--config.train.steps=7\n")
  status, out, _ = show(f"--flagfile={tmp_path / 'flags'}")
  assert status == 0 and json.loads(out)["train"]["steps"] == 7
  status, _, err = show("--", "--config.train.steps=7")
  assert status == 2 and "is not a flag" in err
  status, out, _ = show()  # Nothing is left of the commands before.
  assert json.loads(out)["train"]["steps"] == 350
