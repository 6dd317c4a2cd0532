"""The command python -m dape_jax.generate."""

import io
import itertools
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import saved_runs
from hypothesis import given
from hypothesis import strategies as st

from dape_jax import data
from dape_jax.checkpoint.state import TrainState
from dape_jax.config import (
    DataConfig,
    ModelConfig,
    TaskConfig,
)
from dape_jax.errors import ConfigError
from dape_jax.generate.__main__ import TextAfter, heading, main
from dape_jax.models import Transformer

_TOKENIZER = data.make_tokenizer("bytes")
# Text that follows "a", the end of the document, an invalid byte, and half a
# character. After "z" all tokens are equally likely.
_CHAIN = [*b"a", *"é€".encode(), _TOKENIZER.eos, 0xFF, 0xC3]


@pytest.fixture(scope="module", autouse=True)
def _compile_fast():
  jax.config.update("jax_disable_most_optimizations", True)
  yield
  jax.config.update("jax_disable_most_optimizations", False)


def _chain_params(model):
  """Returns parameters under which each token of _CHAIN follows the last."""
  tokens = jnp.zeros((1, 1), jnp.int32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
  params = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)
  for channel, (token, following) in enumerate(itertools.pairwise(_CHAIN)):
    params["embedding"][token] = np.eye(model.config.width)[channel]
    params["head"]["kernel"][channel, following] = 100
  params["final_norm"]["scale"][:] = 1
  return jax.tree.map(jnp.asarray, params)


@pytest.fixture(scope="module")
def _runs(tmp_path_factory):
  """Folder with the runs "text" and "task"."""
  root = tmp_path_factory.mktemp("runs")
  model = ModelConfig(
      num_layers=1,
      width=16,
      num_heads=2,
      encoding="learned",
      encoding_options={"max_length": 150},
      dtype="float32",
  )
  params = _chain_params(Transformer(model))
  state = TrainState(jnp.int32(3), params, optax.sgd(0.1).init(params))
  for name, source in (
      ("text", DataConfig(length=16)),
      ("task", TaskConfig("parity_check")),
  ):
    saved_runs.save_run(root / name, state, source, model=model)
  (root / "cut").write_bytes(b"\xc3")
  (root / "empty").touch()
  return root


@pytest.fixture
def write(_runs, monkeypatch, capsys):
  """Runs the command on the run "text"; returns what it prints."""
  monkeypatch.chdir(_runs)

  def call(*flags):
    main(["--checkpoint=text", "--max_new_tokens=8", *flags])
    out, err = capsys.readouterr()
    assert not err
    return out

  return call


def test_one_prompt(write):
  assert write("--prompt=a") == "é€\n"
  # The end-of-document token has no text.
  assert write("--prompt=a", "--ignore_eos") == "é€\ufffd\ufffd\n"


def test_several_prompts(write):
  out = write("--prompt=a", "--prompt=a", "--prompt_file=cut")
  a, cut = "==> 'a' <==", "==> '\ufffd' <=="
  assert out.splitlines() == [a, "é€", a, "é€", cut, "é€"]


def test_heading_of_a_long_prompt_is_its_end():
  assert heading(b"x\n" * 30) == "==> '" + r"x\n" * 30 + "' <=="
  assert heading(b"x\n" * 31) == "==> '..." + r"x\n" * 30 + "' <=="


def test_sampling_flags(write):
  drawn = {write("--prompt=z", f"--seed={seed}") for seed in (0, 1, 2)}
  assert len(drawn) == 3 and write("--prompt=z") in drawn
  for greedy in ("--temperature=0", "--top_k=1", "--top_p=1e-3"):
    assert write("--prompt=z", greedy) == "\0" * 8 + "\n"


class _Terminal(io.StringIO):
  """Records each piece of output."""

  def __init__(self):
    super().__init__()
    self.pieces = []

  def write(self, text):
    self.pieces.append(text)
    return super().write(text)

  def isatty(self):
    return True


def test_terminal_output_is_streamed_by_character(write, monkeypatch):
  terminal = _Terminal()
  monkeypatch.setattr(sys, "stdout", terminal)
  write("--prompt=a")
  assert [piece for piece in terminal.pieces if piece] == ["é", "€", "\n"]


@given(st.binary(max_size=12), st.binary(max_size=3), st.data())
def test_text_does_not_depend_on_token_chunks(text, prompt, cuts):
  prompt = "aé".encode() + prompt
  whole = (prompt + text).decode("utf-8", "replace")
  reader = TextAfter(prompt, _TOKENIZER)
  pieces = []
  tokens = _TOKENIZER.encode(text)
  while len(tokens):
    size = cuts.draw(st.integers(1, len(tokens)))
    pieces.append(reader.read(tokens[:size]))
    tokens = tokens[size:]
  pieces.append(reader.read([], final=True))
  assert whole.endswith("".join(pieces))
  # Only the characters of the prompt are missing.
  before = TextAfter(b"", _TOKENIZER).read(_TOKENIZER.encode(prompt))
  assert before + "".join(pieces) == whole


@pytest.mark.parametrize(
    "flags, message",
    [
        ("", "arguments are required: --checkpoint"),
        ("--checkpoint=text", "give --prompt=TEXT or --prompt_file=FILE"),
        ("--checkpoint=text --prompt=", "--prompt is empty"),
        ("--checkpoint=text --prompt_file=empty", "--prompt_file=empty is emp"),
        ("--checkpoint=text --prompt_file=none", "none: No such file"),
        (
            "--checkpoint=text --prompt=a --topk=1",
            "Did you mean --top_k=1? See gene",
        ),
        (
            "--checkpoint=text --prompt=a --seed=x",
            "must be a whole number, got 'x'",
        ),
        ("--checkpoint=nowhere --prompt=a", "nowhere does not exist"),
        ("--checkpoint=task --prompt=a", "the task parity_check; give one"),
        ("--checkpoint=text --prompt=a --top_p=2", "top_p=2.0: must be above"),
        (
            "--checkpoint=text --prompt=a",
            'max_new_tokens=200 after a prompt of 1: encoding "learned" ends at',
        ),
    ],
)
def test_bad_input(_runs, monkeypatch, flags, message):
  monkeypatch.chdir(_runs)
  with pytest.raises(ConfigError) as error:
    main(flags.split())
  assert message in str(error.value)
  assert "\n" not in str(error.value)


def test_help(capsys):
  with pytest.raises(SystemExit) as exit_:
    main(["--help"])
  assert exit_.value.code == 0
  out = capsys.readouterr().out
  assert 'dape_jax.generate --checkpoint=runs/my_run --prompt="def' in out
  assert "--temperature TEMPERATURE" in out and "(default 0.8)" in out


def test_command_prints_one_error_line_and_exits_with_2(tmp_path):
  done = subprocess.run(
      [sys.executable, "-m", "dape_jax.generate", "--checkpoint=x"],
      cwd=pathlib.Path(__file__).parents[2],
      env=os.environ | {"PYTHONIOENCODING": "ascii"},
      capture_output=True,
      text=True,
  )
  assert done.returncode == 2 and not done.stdout
  assert done.stderr == (
      "generate: error: give --prompt=TEXT or --prompt_file=FILE.\n"
  )
