"""Hand-made results of an evaluation."""

import itertools
import math

import numpy as np
import pytest


def _row(length, perplexity, crop):
  row = {"length": length, "stride": None, "documents": 2, "regions": 3}
  row |= {"tokens": 512, "bytes": 511, "document_tokens": [256, 256]}
  row["seconds"] = 1.25
  for prefix, value in ("", perplexity), ("crop_", crop):
    row |= {
        f"{prefix}nats": 512 * math.log(value),
        f"{prefix}perplexity": value,
        f"{prefix}perplexity_low": value * 0.9,
        f"{prefix}perplexity_high": value * 1.1,
        f"{prefix}bits_per_byte": value / 2,
        f"{prefix}non_finite_tokens": 0 if math.isfinite(value) else 7,
        f"{prefix}document_nats": [256 * math.log(value)] * 2,
    }
  return row


def _run(name, encoding, seed, train_length, lengths, perplexities, crops):
  rows = map(_row, lengths, perplexities, crops)
  return {
      "name": name,
      "checkpoint": f"/runs/{name}",
      "encoding": encoding,
      "train_length": train_length,
      "step": 70,
      "seed": seed,
      "rows": list(rows),
      "positions": None,
      "retrieval": [],
  }


def _group(name, runs):
  rows = []
  for of_length in zip(*(run["rows"] for run in runs)):
    row = {"length": of_length[0]["length"]}
    for field in "perplexity", "crop_perplexity":
      values = [r[field] for r in of_length]
      std = float(np.std(values, ddof=1)) if len(values) > 1 else None
      row |= {f"{field}_mean": float(np.mean(values)), f"{field}_std": std}
    rows.append(row)
  return {
      "name": name,
      "encoding": runs[0]["encoding"],
      "train_length": runs[0]["train_length"],
      "runs": [run["name"] for run in runs],
      "rows": rows,
  }


def make_results(subjects, lengths=(128, 256), train_length=128, p_values=None):
  """Returns results.

  Args:
    subjects: {name: (encoding, perplexities [seeds][lengths], crops [lengths])}.
    lengths: inputs per reading.
    train_length: of all runs.
    p_values: {(length, a, b): p value} of the comparisons that are not 1.
  """
  runs, groups = [], []
  seeds = max(len(perplexities) for _, perplexities, _ in subjects.values())
  for name, (encoding, perplexities, crops) in subjects.items():
    members = [
        _run(
            f"{name}_s{seed}" if seeds > 1 else name,
            encoding,
            seed,
            train_length,
            lengths,
            values,
            crops,
        )
        for seed, values in enumerate(perplexities)
    ]
    runs += members
    groups.append(_group(name, members))
  comparisons = []
  for index, length in enumerate(lengths):
    pairs = [
        *itertools.combinations(groups, 2),
        *((group, None) for group in groups),
    ]
    for a, b in pairs:
      name = b["name"] if b else "crop"
      other = b["rows"][index]["perplexity_mean"] if b else None
      other = other or a["rows"][index]["crop_perplexity_mean"]
      own = a["rows"][index]["perplexity_mean"]
      difference = math.log(own) - math.log(other)
      p_value = (p_values or {}).get((length, a["name"], name), 1.0)
      comparisons.append(
          {
              "length": length,
              "a": a["name"],
              "b": name,
              "difference": difference,
              "difference_low": difference - 0.01,
              "difference_high": difference + 0.01,
              "p_value": p_value,
          }
      )
  return {
      "dape_jax_version": "0.1.0",
      "command": "eval.py --checkpoint=/runs/a <&>",
      "corpus_fingerprint": "0123456789abcdef",
      "source": "code",
      "tokenizer": "bytes",
      "split": "test",
      "protocol": "last256",
      "stride": None,
      "lengths": list(lengths),
      "peak_rss_bytes": 2**30,
      "documents": [3, 5],
      "document_names": ["three.py", "five.py"],
      "runs": runs,
      "groups": groups,
      "comparisons": comparisons,
  }


@pytest.fixture(scope="session", name="make_results")
def make_results_fixture():
  return make_results


@pytest.fixture
def two_runs():
  """A run that diverges and one that turns to NaN."""
  return make_results(
      {
          "one": ("rope", [[4.5, 34567.0]], [4.5, 4.25]),
          "alibi": ("alibi", [[5.0, math.nan]], [5.0, 5.125]),
      },
      p_values={(128, "one", "alibi"): 0.01, (256, "one", "crop"): 0.01},
  )
