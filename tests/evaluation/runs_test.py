"""eval.py reports bad input in one line; runs have short names."""

import pathlib
import shutil

import pytest

from dape_jax.checkpoint import runs
from dape_jax.errors import ConfigError

_SLIDING = ("--protocol=sliding",)
_TEXTS = ("--text=data.txt,more.txt",)


def test_other_corpora_are_refused(evaluate):
  mine, other = (runs.load_run(name).fingerprint for name in ("a", "other"))
  assert mine != other
  settings = "--lengths=32", "--output=x"
  status, _, err = evaluate("--compare", "a", "other", *settings)
  assert status == 2 and mine in err and other in err
  # The current corpus is that of run a.
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
        (["--checkpoint=a", "--lengths=16", "--stride=2"], "=last256 has none"),
        (
            ["--checkpoint=a", "--lengths=16", *_SLIDING, "--stride=17"],
            "use at most 16",
        ),
        (["--checkpoint=a", "--lengths=16", "--batch_size=-1"], "batch_size"),
        (
            ["--checkpoint=a", "--lengths=16", "--text=no.txt"],
            "no.txt: No such",
        ),
        (
            ["--checkpoint=a", "--lengths=9999", "--text=a/../data.txt"],
            "500 tokens, too few for --lengths=9999; use --lengths up to 500",
        ),
        (
            ["--checkpoint=a", "--lengths=16", *_TEXTS, "--regions=1"],
            "--regions=1 is less than the 2 files",
        ),
        (
            ["--checkpoint=a", "--lengths=16", *_TEXTS, "--split=test"],
            "--split is of the corpus",
        ),
        (
            ["--checkpoint=a", "--lengths=16", "--retrieval_samples=2"],
            "needs --retrieval",
        ),
        (["--checkpoint=a", "--lengths=16", "--text="], "--text is empty"),
        (
            ["--checkpoint=a", "--lengths=16", "--retrieval=passkeys"],
            'Did you mean "passkey"',
        ),
        (
            ["--checkpoint=a", "--lengths=16", "--retrieval=passkey"],
            "16 is too short for passkey",
        ),
        (
            ["--checkpoint=task", "--lengths=16"],
            "python -m dape_jax.studies.tasks --score=task",
        ),
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
  # Reserved for the baseline.
  assert names(("/x/crop", 1), ("/x/a", 1)) == ["x/crop", "x/a"]
  assert names(("/x/a\n\x1bb\udcff", 1)) == ["a??b?"]
  with pytest.raises(ConfigError, match="given twice"):
    names(("/x/a", 1), ("/x/a", 1))


def test_changed_parameters_are_rejected(root, tmp_path):
  workdir = tmp_path / "a"
  shutil.copytree(root / "a", workdir)
  run = runs.find_run(workdir)
  runs.load_params(run)
  shutil.rmtree(workdir)
  shutil.copytree(root / "seed1", workdir)
  with pytest.raises(ConfigError, match="parameters changed during evaluation"):
    runs.load_params(run)
