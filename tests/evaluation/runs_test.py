"""eval.py from a checkpoint's folder to table, JSON and PNG; and its errors."""

import dataclasses
import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl.testing import flagsaver

from dape_jax import cli, data
from dape_jax.config import (
    DataConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)
from dape_jax.config_dict import experiment_to_dict
from dape_jax.data import sources
from dape_jax.errors import ConfigError
from dape_jax.evaluation import report, runs
from dape_jax.models import Transformer
from dape_jax.training.checkpoint import Checkpoints
from dape_jax.training.state import init_state

_MODEL = ModelConfig(
    num_layers=1,
    width=16,
    num_heads=2,
    encoding="kerple_log",
    dtype="float32",
)
_SCRIPT = pathlib.Path(__file__).parents[2] / "eval.py"


def _documents(seed):
  rng = np.random.default_rng(seed)
  return [
      data.Document(
          f"{split}/{number}.py",
          split,
          split,
          rng.integers(97, 105, length).astype(np.uint8).tobytes(),
      )
      for split in ("train", "validation", "test")
      for number, length in enumerate((100, 700, 400))
  ]


@pytest.fixture(scope="module")
def evaluate_main():
  spec = importlib.util.spec_from_file_location("eval_script", _SCRIPT)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.main


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  """Folder with runs a (trained at 16), b (at 32) and other (another corpus)."""
  root = tmp_path_factory.mktemp("runs")
  init = lambda: init_state(Transformer(_MODEL), optax.sgd(0.1), seed=0)
  state = dataclasses.replace(jax.jit(init)(), step=jnp.asarray(3, jnp.int32))
  with pytest.MonkeyPatch.context() as patch:
    for name, length, seed in (("a", 16, 0), ("b", 32, 0), ("other", 16, 1)):
      patch.setitem(sources.SOURCES, "code", lambda seed=seed: _documents(seed))
      _save_run(root / name, length, state, root / "data")
  return root


def _save_run(workdir, length, state, data_dir):
  config = ExperimentConfig(
      _MODEL,
      DataConfig(length=length, dir=str(data_dir)),
      OptimizerConfig(),
      TrainConfig(),
  )
  batches = data.TrainBatches(
      data.load_corpus("code", "bytes", data_dir).split("train"),
      length=length,
      batch_size=2,
      seed=0,
      packing="segments",
  )
  with Checkpoints(workdir / "checkpoints", keep=2) as checkpoints:
    checkpoints.save(state, experiment_to_dict(config), batches.data_state(3))


@pytest.fixture
def evaluate(evaluate_main, root, monkeypatch, capsys):
  """Runs eval.py; returns its exit status, stdout and stderr."""
  monkeypatch.setitem(sources.SOURCES, "code", lambda: _documents(0))
  monkeypatch.chdir(root)

  @flagsaver.flagsaver
  def call(*arguments):
    with pytest.raises(SystemExit) as exit_:
      cli.run(evaluate_main, ["eval.py", *arguments])
    out, err = capsys.readouterr()
    return exit_.value.code or 0, out, err

  return call


def test_one_run(evaluate, root):
  status, out, err = evaluate(
      "--checkpoint=a", "--lengths=16,...,64", "--chunk=16"
  )
  assert status == 0, err
  *table, json_path, png_path = out.splitlines()
  assert pathlib.Path(json_path).parent == root / "a" / "evaluation"
  assert pathlib.Path(png_path).exists()
  results = report.read_json(json_path)
  assert report.table(results).split("\n") == table
  (run,) = results["runs"]
  assert (run["name"], run["train_length"], run["step"]) == ("a", 16, 3)
  assert run["encoding"] == "kerple_log"
  assert results["lengths"] == [16, 32, 64]
  assert results["corpus_fingerprint"] == runs.load_run("a").fingerprint
  assert results["peak_rss_bytes"] > 50e6
  # Text of eight equally likely letters, read by an untrained model.
  for row in run["rows"]:
    assert 8 < row["perplexity"] < 1000
    assert row["non_finite_tokens"] == 0
    # Regions of 64: 1 + 10 + 6 in documents of 100, 700 and 400 bytes.
    assert row["regions"] == 17 and row["tokens"] == 17 * 64
  assert "length 64: perplexity" in err


def test_compare(evaluate, root):
  status, out, err = evaluate(
      "--compare", "a", "b/checkpoints/3", "--lengths=32", "--output=both"
  )
  assert status == 0, err
  results = report.read_json(root / "both" / "test_last256.json")
  assert [r["name"] for r in results["runs"]] == ["a", "b"]
  assert [r["train_length"] for r in results["runs"]] == [16, 32]
  assert "b (kerple_log), trained at 32" in out
  assert (root / "both" / "test_last256.png").exists()


def test_other_corpora_are_refused(evaluate):
  mine, other = (runs.load_run(name).fingerprint for name in ("a", "other"))
  assert mine != other
  settings = "--lengths=32", "--output=x"
  status, _, err = evaluate("--compare", "a", "other", *settings)
  assert status == 2 and mine in err and other in err
  # The present corpus is that of run a.
  status, _, err = evaluate("--checkpoint=other", *settings)
  assert status == 2 and mine in err and other in err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--lengths=16"], "--checkpoint=DIR or --compare"),
        (["--checkpoint=a", "--compare=b", "--lengths=16"], "either"),
        (["--checkpoint=a"], "--lengths"),
        (["--checkpoint=a", "b", "--lengths=16"], "--compare DIR DIR"),
        (["--compare=a", "--lengths=16", "--output=x"], "two folders"),
        (["--compare", "a", "b", "--lengths=16"], "--output=DIR"),
        (["--compare", "a", "a", "--lengths=16", "--output=x"], "given twice"),
        (["--checkpoint=a", "--lengths=-5"], "-5 is not greater than 0"),
        (["--checkpoint=a", "--lengths=0"], "0 is not greater than 0"),
        (["--checkpoint=a", "--lengths=16,x"], '"x" is not a whole number'),
        (["--checkpoint=a", "--lengths=701"], "use lengths up to 700"),
        (["--checkpoint=nowhere", "--lengths=16"], "nowhere"),
        (["--checkpoint=data", "--lengths=16"], "no finished checkpoint"),
        (["--checkpoint=a", "--lengths=16", "--protocol=lats"], "last256"),
        (["--checkpoint=a", "--lengths=16", "--regions=0"], "regions"),
        (["--checkpoint=a", "--lengths=16", "--split=dev"], "validation"),
        (["--checkpoint=a", "--lenghts=16"], "lenghts"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(evaluate, arguments, message):
  status, out, err = evaluate(*arguments)
  assert status == 2 and not out
  assert err.startswith("eval.py: error: ") and err.count("\n") == 1
  assert message in err


def _run(workdir, step):
  return runs.Run(
      pathlib.Path(workdir), pathlib.Path(workdir), None, {}, step, "f"
  )


def test_run_names_are_shortest_unique():
  names = lambda *rs: runs.run_names([_run(*r) for r in rs])
  assert names(("/x/a", 1)) == ["a"]
  assert names(("/x/a", 1), ("/x/b", 1)) == ["a", "b"]
  assert names(("/x/a", 1), ("/y/a", 1)) == ["x/a", "y/a"]
  assert names(("/x/a", 1), ("/x/a", 2)) == ["a@1", "a@2"]
  with pytest.raises(ConfigError, match="given twice"):
    names(("/x/a", 1), ("/x/a", 1))
