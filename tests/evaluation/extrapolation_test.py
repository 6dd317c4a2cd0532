"""Results of runs, groups and texts; an evaluation resumes from its rows."""

import functools
import gc

import jax
import numpy as np
import pytest

from dape_jax import data
from dape_jax.checkpoint import runs
from dape_jax.data import sources
from dape_jax.errors import ConfigError
from dape_jax.evaluation import evaluator, extrapolation

_BYTES = data.ByteTokenizer()
# Shared across tests, because compiling takes longer than running.
_make_step = functools.cache(evaluator.make_step)


@pytest.fixture(autouse=True)
def steps(monkeypatch):
  """Token shapes of all executed steps."""
  shapes = []

  def counting(model):
    step = _make_step(model)

    def call(params, cache, tokens, *rest):
      shapes.append(tokens.shape)
      return step(params, cache, tokens, *rest)

    call.lower = step.lower
    return call

  monkeypatch.setattr(evaluator, "make_step", counting)
  return shapes


@pytest.fixture
def measure(root, documents, monkeypatch):
  """Evaluates without a report; settings are those of a small evaluation."""
  monkeypatch.chdir(root)
  monkeypatch.setitem(sources.SOURCES, "code", lambda: documents(0))

  def call(folder, *names, **settings):
    defaults = {"lengths": (16, 32), "max_regions": 4}
    defaults |= {"chunk": 32, "batch_size": 4}
    found = [runs.find_run(name) for name in names]
    return extrapolation.evaluate_runs(
        found, extrapolation.Settings(**defaults | settings), root / folder
    )

  return call


def _numbers(results):
  """Returns results without the facts about the process."""
  process = ("command", "peak_rss_bytes")
  return {k: v for k, v in results.items() if k not in process}


def test_rows_are_reused_on_resume(measure, root, steps, capsys):
  first = measure("resumed", "a")
  assert steps

  def rerun(*names, **settings):
    steps.clear()
    results = measure("resumed", *names, **settings)
    return len(steps), _numbers(results)

  assert rerun("a") == (0, _numbers(first))
  # Results do not depend on the batch size and the chunk.
  assert rerun("a", batch_size=0, chunk=8) == (0, _numbers(first))
  # One row is deleted, then the other damaged.
  damaged, lost = sorted((root / "resumed/rows").iterdir())
  lost.unlink()
  count, _ = rerun("a")
  assert count > 0
  damaged.write_text(damaged.read_text()[:99])
  capsys.readouterr()
  count, last = rerun("a")
  assert count > 0 and f"{damaged} is damaged" in capsys.readouterr().err
  for row, before in zip(last["runs"][0]["rows"], first["runs"][0]["rows"]):
    np.testing.assert_allclose(row["document_nats"], before["document_nats"])
  # Other parameters, protocols and training lengths make other rows.
  for name, protocol in (("seed1", "last256"), ("a", "all"), ("b", "all")):
    count, _ = rerun(name, protocol=protocol)
    assert count > 0
  assert len(list((root / "resumed/rows").iterdir())) == 8


def test_automatic_batch_size_gives_the_same_results(measure):
  fitting, single = (
      measure(f"batches{n}", "a", lengths=(32,), batch_size=n)["runs"][0]
      for n in (0, 1)
  )
  for name in ("document_nats", "crop_document_nats"):
    np.testing.assert_allclose(
        fitting["rows"][0][name], single["rows"][0][name], rtol=1e-6
    )


def test_groups_of_seeds(measure, monkeypatch):
  sizes, load_params = [], evaluator.load_params

  def record_size(run):
    gc.collect()
    sizes.append(sum(x.nbytes for x in jax.live_arrays()))
    return load_params(run)

  monkeypatch.setattr(evaluator, "load_params", record_size)
  results = measure("all", "a", "seed1/checkpoints/3", "b")
  a, seed1, b = results["runs"]
  assert [r["name"] for r in results["runs"]] == ["a", "seed1", "b"]
  assert [r["train_length"] for r in results["runs"]] == [16, 16, 32]
  seeds, single = results["groups"]
  assert seeds["runs"] == ["a", "seed1"] and single["runs"] == ["b"]
  assert seeds["name"] == "kerple_log, trained at 16"
  comparison = results["comparisons"][3]
  assert (comparison["a"], comparison["b"]) == (seeds["name"], single["name"])
  nats = [np.array(r["rows"][1]["document_nats"]) for r in (a, seed1, b)]
  differences = (nats[0] + nats[1]) / 2 - nats[2]
  assert comparison["difference"] == pytest.approx(
      differences.sum() / a["rows"][1]["tokens"]
  )
  assert len(results["comparisons"]) == 2 * (1 + 2)
  # The parameters of the previous run are freed.
  leaves = jax.tree.leaves(load_params(runs.find_run("a")))
  params = sum(x.nbytes for x in leaves)
  assert len(sizes) == 3 and max(sizes) - sizes[0] < params


def test_texts(measure):
  results = measure(
      "texts",
      "other",
      texts=["data.txt", "more.txt"],
      protocol="positionwise",
      max_regions=32,
  )
  assert results["split"] == "text" and results["source"] == "data.txt,more.txt"
  assert results["document_names"] == ["data.txt", "more.txt"]
  (run,) = results["runs"]
  (row,) = run["rows"]
  assert results["lengths"] == [32] == [row["length"]]
  assert run["positions"][-1]["end"] == 32
  assert sum(p["nats"] for p in run["positions"]) == pytest.approx(row["nats"])
  # 15 regions in 500 bytes, 10 in 320 bytes; the last target is EOS.
  assert row["tokens"] == 25 * 32 and row["bytes"] == row["tokens"] - 1


def test_retrieval(measure, steps):
  settings = {"lengths": (160,), "max_regions": 1, "chunk": 256}
  settings |= {"retrieval": ["passkey"], "retrieval_samples": 1}
  results = measure("found", "a", **settings)
  rows = results["runs"][0]["retrieval"]
  assert [row["depth"] for row in rows] == [0, 0.25, 0.5, 0.75, 1]
  for row in rows:
    assert (row["task"], row["length"], row["samples"]) == ("passkey", 160, 1)
    assert row["exact_match"] == 0
  steps.clear()
  assert _numbers(measure("found", "a", **settings)) == _numbers(results)
  assert not steps


@pytest.fixture
def files(tmp_path):
  texts = {
      "a": b"hello\xff",
      "b": b"other text",
      "c": b"hello\xff",
      "empty": b"",
  }
  for name, text in texts.items():
    (tmp_path / name).write_bytes(text)
  return lambda names: [str(tmp_path / name) for name in names]


def test_texts_are_documents(files):
  split = extrapolation.open_texts(files("ba"), _BYTES, 6)
  assert split.starts.tolist() == [0, 11, 18]
  assert _BYTES.decode(split.tokens[11:17]) == b"hello\xff"
  assert split.tokens[10] == split.tokens[17] == _BYTES.eos
  assert split.tokens.dtype == np.uint16
  assert [split.name(i) for i in (0, 1)] == files("ba")


def test_fingerprint_of_texts_is_of_contents(files):
  a, c, *others = (
      extrapolation.open_texts(files(names), _BYTES, 1).fingerprint
      for names in ("a", "c", "b", "ab", "ba")
  )
  assert a == c and len({a, *others}) == 4


@pytest.mark.parametrize(
    "names, longest, message",
    [
        (["missing"], 1, "--text=.*missing: No such file"),
        (["a", "empty"], 1, "empty has 0 tokens, too few for --lengths=1"),
        (["b", "a"], 7, "a has 6 tokens, .*; use --lengths up to 6"),
        (["a", "b", "c"], 1, "/a and .*/c are the same text"),
        (["."], 1, "Is a directory"),
    ],
)
def test_unusable_texts_are_rejected(files, names, longest, message):
  with pytest.raises(ConfigError, match=message):
    extrapolation.open_texts(files(names), _BYTES, longest)
