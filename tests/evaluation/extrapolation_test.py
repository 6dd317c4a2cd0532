"""Results of runs, groups and texts; an evaluation resumes from its rows."""

import dataclasses
import functools
import gc
import pathlib

import jax
import numpy as np
import pytest

from dape_jax import data
from dape_jax.checkpoint import runs
from dape_jax.data import sources
from dape_jax.evaluation import extrapolation, report, run_reader
from dape_jax.evaluation.extrapolation import Settings
from dape_jax.evaluation.reading import make_plan


@pytest.fixture(scope="module")
def compiled():
  """`make_step`, shared, because compiling takes longer than reading."""
  return functools.cache(run_reader.make_step)


@pytest.fixture(autouse=True)
def steps(monkeypatch, compiled):
  """The shapes of tokens of all steps that are made."""
  shapes = []

  def counting(model):
    step = compiled(model)

    def call(params, cache, tokens, *rest):
      shapes.append(tokens.shape)
      return step(params, cache, tokens, *rest)

    call.lower = step.lower
    return call

  monkeypatch.setattr(run_reader, "make_step", counting)
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
        found, Settings(**defaults | settings), root / folder
    )

  return call


def _numbers(results):
  """Returns results, but for what is of the process and no result."""
  of_process = ("command", "peak_rss_bytes")
  return {k: v for k, v in results.items() if k not in of_process}


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
  # Text of eight equally likely letters, read by an untrained model.
  for row in run["rows"]:
    assert 8 < row["perplexity_low"] <= row["perplexity"] < 1000
    assert row["perplexity"] <= row["perplexity_high"]
    assert row["non_finite_tokens"] == 0
    # Regions of 32: 3 + 17 + 12 in documents of 100, 700 and 400 bytes.
    assert row["regions"] == 32 and row["tokens"] == 32 * 32
    assert row["document_tokens"] == [96, 544, 384]
  assert "length 32: 32 texts, 32 at a time" in err
  assert "length 32: perplexity" in err
  assert [(c["a"], c["b"]) for c in results["comparisons"]] == [
      ("a", "crop")
  ] * 2
  # Up to the training length the crop is the reading itself.
  assert results["comparisons"][0]["difference"] == 0
  assert results["comparisons"][0]["p_value"] == 1


def test_rows_are_reused_on_resume(measure, root, steps, capsys):
  first = measure("resumed", "a")
  assert steps

  def reads(*names, **settings):
    steps.clear()
    results = measure("resumed", *names, **settings)
    return len(steps), _numbers(results)

  assert reads("a") == (0, _numbers(first))
  # Results do not depend on how much is read at a time.
  assert reads("a", batch_size=0, chunk=8) == (0, _numbers(first))
  # One length is lost, then the other damaged.
  damaged, lost = sorted((root / "resumed/rows").iterdir())
  lost.unlink()
  count, _ = reads("a")
  assert count > 0
  damaged.write_text(damaged.read_text()[:99])
  capsys.readouterr()
  count, last = reads("a")
  assert count > 0 and f"{damaged} is damaged" in capsys.readouterr().err
  for row, before in zip(last["runs"][0]["rows"], first["runs"][0]["rows"]):
    np.testing.assert_allclose(row["document_nats"], before["document_nats"])
  # Other parameters, protocols and training lengths are other rows.
  for name, protocol in (("seed1", "last256"), ("a", "all"), ("b", "all")):
    count, _ = reads(name, protocol=protocol)
    assert count > 0
  assert len(list((root / "resumed/rows").iterdir())) == 8


def test_automatic_batches_have_the_same_results(measure):
  """As many rows as fit, and one at a time."""
  fitting, single = (
      measure(f"batches{n}", "a", lengths=(32,), batch_size=n)["runs"][0]
      for n in (0, 1)
  )
  for name in ("document_nats", "crop_document_nats"):
    np.testing.assert_allclose(
        fitting["rows"][0][name], single["rows"][0][name], rtol=1e-6
    )


def test_groups_of_seeds(measure, monkeypatch):
  sizes, load_params = [], run_reader.load_params

  def weighing(run):
    gc.collect()
    sizes.append(sum(x.nbytes for x in jax.live_arrays()))
    return load_params(run)

  monkeypatch.setattr(run_reader, "load_params", weighing)
  results = measure("all", "a", "seed1/checkpoints/3", "b")
  a, seed1, b = results["runs"]
  names = ["a", "seed1", "b"]
  assert [r["name"] for r in results["runs"]] == names
  assert [r["train_length"] for r in results["runs"]] == [16, 16, 32]
  seeds, single = results["groups"]
  assert seeds["runs"] == ["a", "seed1"] and single["runs"] == ["b"]
  assert seeds["name"] == "kerple_log, trained at 16"
  two = [r["rows"][1]["perplexity"] for r in (a, seed1)]
  row = seeds["rows"][1]
  assert row["length"] == 32
  assert row["perplexity_mean"] == pytest.approx(np.mean(two))
  assert row["perplexity_std"] == pytest.approx(abs(two[0] - two[1]) / 2**0.5)
  assert single["rows"][0]["perplexity_std"] is None
  comparison = results["comparisons"][3]
  assert comparison["length"] == 32
  assert (comparison["a"], comparison["b"]) == (seeds["name"], single["name"])
  nats = [np.array(r["rows"][1]["document_nats"]) for r in (a, seed1, b)]
  differences = (nats[0] + nats[1]) / 2 - nats[2]
  assert comparison["difference"] == pytest.approx(
      differences.sum() / a["rows"][1]["tokens"]
  )
  low, high = comparison["difference_low"], comparison["difference_high"]
  assert low <= comparison["difference"] <= high
  assert len(results["comparisons"]) == 2 * (1 + 2)
  # The parameters of the run before are gone.
  params = sum(
      x.nbytes for x in jax.tree.leaves(load_params(runs.find_run("a")))
  )
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
  # 15 regions in 500 bytes, 10 in 320 bytes: with the end of the document.
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


def test_row_key_has_chunk_only_if_numbers_depend_on_it(root):
  """Only DAPE V2 with edge="zero" depends on it."""
  run = runs.find_run(root / "a")
  split = data.Split("test", "f", np.zeros(99), np.array([0, 99]), ("x",))
  plan = make_plan(split, lengths=[16], protocol="all", max_regions=9)
  tokenizer = data.make_tokenizer("bytes")

  def keys(edge):
    options = {"edge": edge}
    model = dataclasses.replace(
        run.config.model, encoding="dape_v2_alibi", encoding_options=options
    )
    config = dataclasses.replace(run.config, model=model)
    own = dataclasses.replace(run, config=config)
    readers = (
        run_reader.RunReader(plan, tokenizer, None, batch_size=1, chunk=n)
        for n in (8, 16)
    )
    return [reader._text_key(own, 16) for reader in readers]

  of_zero, of_others = keys("zero"), keys("extend")
  assert of_zero[0] != of_zero[1] and of_others[0] == of_others[1]
