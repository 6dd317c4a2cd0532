"""Hand-made evaluation results."""

import itertools
import math

import numpy as np
import pytest


def _row(length, perplexity, crop):
  row = {"length": length, "stride": None, "documents": 2, "regions": 3}
  row |= {"tokens": 512, "bytes": 511, "document_tokens": [256, 256]}
  row["seconds"] = 1.25
  for prefix, value in ("", perplexity), ("crop_", crop):
    of_value = {
        "nats": 512 * math.log(value),
        "perplexity": value,
        "perplexity_low": value * 0.9,
        "perplexity_high": value * 1.1,
        "bits_per_byte": value / 2,
        "non_finite_tokens": 0 if math.isfinite(value) else 7,
        "document_nats": [256 * math.log(value)] * 2,
    }
    row |= {prefix + field: number for field, number in of_value.items()}
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
    lengths: context lengths.
    train_length: training length of all runs.
    p_values: {(length, a, b): p value}; all others are 1.
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
    rows = {group["name"]: group["rows"][index] for group in groups}
    for a, b in [
        *itertools.combinations(rows, 2),
        *((a, "crop") for a in rows),
    ]:
      other = rows[a]["crop_perplexity_mean"]
      if b != "crop":
        other = rows[b]["perplexity_mean"]
      difference = math.log(rows[a]["perplexity_mean"]) - math.log(other)
      comparisons.append(
          {
              "length": length,
              "a": a,
              "b": b,
              "difference": difference,
              "difference_low": difference - 0.01,
              "difference_high": difference + 0.01,
              "p_value": (p_values or {}).get((length, a, b), 1.0),
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
  """Returns results of a run that diverges and of one that becomes NaN."""
  return make_results(
      {
          "one": ("rope", [[4.5, 34567.0]], [4.5, 4.25]),
          "alibi": ("alibi", [[5.0, math.nan]], [5.0, 5.125]),
      },
      p_values={(128, "one", "alibi"): 0.01, (256, "one", "crop"): 0.01},
  )
