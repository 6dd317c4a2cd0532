"""Groups are runs that differ by their seed; comparisons are paired."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from dape_jax.config import (
    DataConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)
from dape_jax.evaluation import results
from dape_jax.evaluation.significance import sign_flip_p_value

_CONFIG = ExperimentConfig(
    ModelConfig(), DataConfig(), OptimizerConfig(), TrainConfig()
)


def _config(seed, **settings):
  model = dataclasses.replace(_CONFIG.model, **settings)
  return dataclasses.replace(_CONFIG, model=model, seed=seed)


def _run(name, encoding="rope", nats=(3.0, 5.0), step=9):
  row = {"length": 64, "tokens": 4, "document_tokens": [1, 3]}
  for prefix, factor in (("", 1), ("crop_", 2)):
    document_nats = [factor * n for n in nats]
    row |= {
        f"{prefix}document_nats": document_nats,
        f"{prefix}perplexity": math.exp(sum(document_nats) / 4),
    }
  run = dict(name=name, encoding=encoding, train_length=512, step=step)
  return run | {"rows": [row]}


def _groups(*configs_and_runs):
  return results.make_groups(*zip(*configs_and_runs))


def test_only_seeds_are_grouped():
  groups = _groups(
      (_config(0), _run("a")),
      (_config(1), _run("b")),
      (_config(2, encoding="nope"), _run("c", "nope")),
      # Another step, a copy, another data folder, another option.
      (_config(2), _run("d", step=10)),
      (_config(1), _run("e")),
      (
          dataclasses.replace(_config(3), data=DataConfig(dir="elsewhere")),
          _run("f"),
      ),
      (_config(4, width=384), _run("g")),
  )
  members = [group["runs"] for group in groups]
  assert members == [["a", "b", "f"], ["c"], ["d"], ["e"], ["g"]]


def test_names_distinguish_groups():
  a, b = (_config(0), _run("a")), (_config(1), _run("b"))
  nope = (_config(0, encoding="nope"), _run("c", "nope"))
  wide = (_config(0, width=384), _run("d"))
  longer = (_config(0, width=384), _run("d") | {"train_length": 1024})
  names = lambda *pairs: [group["name"] for group in _groups(*pairs)]
  assert names(a, nope) == ["a", "c"]
  assert names(a, b, nope) == ["rope", "nope"]
  assert names(a, b, longer) == [
      "rope, trained at 512",
      "rope, trained at 1024",
  ]
  assert names(a, b, wide) == ["a, b", "d"]


def test_seeds_are_averaged_before_comparison():
  runs = [
      _run("a", nats=(3.0, 5.0)),
      _run("b", nats=(5.0, 9.0)),
      _run("c", "nope", nats=(1.0, 1.0)),
  ]
  configs = [_config(0), _config(1), _config(0, encoding="nope")]
  groups = results.make_groups(configs, runs)
  [row] = groups[0]["rows"]
  perplexities = [math.exp(2), math.exp(3.5)]
  assert row["perplexity_mean"] == pytest.approx(np.mean(perplexities))
  assert row["perplexity_std"] == pytest.approx(np.std(perplexities, ddof=1))
  comparisons = results.make_comparisons(groups, runs)
  assert [(c["a"], c["b"], c["difference"]) for c in comparisons] == [
      ("rope", "nope", (3 + 6) / 4),
      ("rope", "crop", -(4 + 7) / 4),
      ("nope", "crop", -(1 + 1) / 4),
  ]
  assert comparisons[0]["p_value"] == sign_flip_p_value([3, 6]) == 0.5
  # A resample has both documents, or one of them twice.
  assert comparisons[0]["difference_low"] == 2
  assert comparisons[0]["difference_high"] == 3


def test_all_pairs_are_compared():
  runs = [_run(name, name) for name in "abcd"]
  configs = [_config(0, width=24 * i) for i in range(1, 5)]
  groups = results.make_groups(configs, runs)
  pairs = [(c["a"], c["b"]) for c in results.make_comparisons(groups, runs)]
  assert pairs == [
      *itertools.combinations("abcd", 2),
      *((name, "crop") for name in "abcd"),
  ]


def test_non_finite_runs_stay_visible():
  runs = [_run("a", nats=(math.inf, 1.0)), _run("b", nats=(math.nan, 1.0))]
  groups = results.make_groups([_config(0), _config(1)], runs)
  assert math.isnan(groups[0]["rows"][0]["perplexity_mean"])
  for comparison in results.make_comparisons(groups, runs):
    assert math.isnan(comparison["p_value"])
    assert math.isnan(comparison["difference_low"])
