"""eval.py writes a report; bad input is one line and exit status 2."""

import pathlib

import pytest

from dape_jax.checkpoint import runs
from dape_jax.evaluation import report


def test_one_run(evaluate, root):
  status, out, err = evaluate("--checkpoint=a", "--lengths=16,32")
  assert status == 0, err
  report_folder = root / "a/evaluation/test_last256_step3"
  results = report.read_json(report_folder / "results.json")
  assert out.startswith(report.table(results))
  paths = out[len(report.table(results)) :].split()
  assert all(pathlib.Path(path).exists() for path in paths)
  (run,) = results["runs"]
  assert (run["name"], run["train_length"], run["step"]) == ("a", 16, 3)
  assert (run["encoding"], run["seed"]) == ("kerple_log", 0)
  assert results["lengths"] == [16, 32]
  assert results["corpus_fingerprint"] == runs.find_run("a").fingerprint
  assert results["peak_rss_bytes"] > 50e6
  assert results["documents"] == [0, 1, 2]
  assert results["document_names"] == [f"test/{i}.py" for i in range(3)]
  for row in run["rows"]:
    assert 8 < row["perplexity_low"] <= row["perplexity"] < 1000
    assert row["perplexity"] <= row["perplexity_high"]
    assert row["non_finite_tokens"] == 0
    # Regions of 32: 3 + 17 + 12 in documents of 100, 700 and 400 bytes.
    assert row["regions"] == 32 and row["tokens"] == 32 * 32
    assert row["document_tokens"] == [96, 544, 384]
  assert "length 32: 32 texts, 32 at a time" in err
  assert "length 32: perplexity" in err
  pairs = [(c["a"], c["b"]) for c in results["comparisons"]]
  assert pairs == [("a", "crop")] * 2
  # Up to the training length the crop baseline is the result itself.
  assert results["comparisons"][0]["difference"] == 0
  assert results["comparisons"][0]["p_value"] == 1


def test_other_corpora_are_rejected(evaluate):
  mine, other = (runs.load_run(name).fingerprint for name in ("a", "other"))
  assert mine != other
  settings = "--lengths=32", "--output=x"
  status, _, err = evaluate("--compare", "a", "other", *settings)
  assert status == 2 and mine in err and other in err
  # The current corpus is that of run a.
  status, _, err = evaluate("--checkpoint=other", *settings)
  assert status == 2 and mine in err and other in err


# Arguments after a valid --checkpoint and --lengths, and part of the message.
_REJECTED = {
    "--protocol=lats": "last256",
    "--regions=0": "regions",
    "--split=dev": "validation",
    "--lenghts=16": "lenghts",
    "--stride=2": "=last256 has none",
    "--protocol=sliding --stride=17": "use at most 16",
    "--batch_size=-1": "batch_size",
    "--text=no.txt": "no.txt: No such",
    "--text=": "--text is empty",
    "--text=data.txt,more.txt --regions=1": "--regions=1 is less than the 2",
    "--text=data.txt --split=test": "--split has no effect with --text",
    "--retrieval_samples=2": "needs --retrieval",
    "--retrieval=passkeys": 'Did you mean "passkey"',
    "--retrieval=passkey": "16 is too short for passkey",
    "--lengths=-5": "-5 is not greater than 0",
    "--lengths=16,x": '"x" is not a whole number',
    "--lengths=701": "use lengths up to 700",
    "--lengths=9999 --text=a/../data.txt": (
        "500 tokens, too few for --lengths=9999; use --lengths up to 500"
    ),
    "--checkpoint=nowhere": "nowhere",
    "--checkpoint=data": "no finished checkpoint",
    "--checkpoint=task": "python -m dape_jax.studies.tasks --score=task",
    "--compare=b": "either",
    "b": "--compare DIR DIR",
}


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--lengths=16", "--checkpoint=DIR or --compare"),
        ("--checkpoint=a", "--lengths"),
        ("--compare=a --lengths=16 --output=x", "two or more folders"),
        ("--compare a b --lengths=16", "--output=DIR"),
        ("--compare a a --lengths=16 --output=x", "given twice"),
        *(
            (f"--checkpoint=a --lengths=16 {k}", v)
            for k, v in _REJECTED.items()
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_2(evaluate, arguments, message):
  status, out, err = evaluate(*arguments.split())
  assert status == 2 and not out
  assert err.startswith("eval.py: error: ") and err.count("\n") == 1
  assert message in err
