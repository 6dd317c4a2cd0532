"""The numbers of results.json, from the nats of each document.

The schema is in `report.results_file`. Every evaluation recomputes these
numbers from the cached nats.
"""

import collections
import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from dape_jax.config import ExperimentConfig
from dape_jax.config.dicts import experiment_to_dict
from dape_jax.evaluation.perplexity import bits_per_byte, perplexity
from dape_jax.evaluation.scoring import Plan
from dape_jax.evaluation.significance import bootstrap_mean, sign_flip_p_value


def make_row(
    length: int, scores: dict[str, Any], plan: Plan, num_bytes: int
) -> dict[str, Any]:
  """Returns one run's row of results at one length.

  Args:
    length: context length.
    scores: see `scoring.score_lengths`.
    plan: what was scored.
    num_bytes: bytes of text in the scored tokens.
  """
  tokens = [len(targets) for targets in plan.targets]
  row = {
      "length": length,
      "stride": plan.stride_at(length),
      "documents": len(plan.documents),
      "regions": len(plan.regions),
      "tokens": sum(tokens),
      "bytes": num_bytes,
      "document_tokens": tokens,
      "seconds": scores["seconds"],
  }
  for prefix in ("", "crop_"):
    document_nats = scores[f"{prefix}document_nats"]
    nats = float(np.sum(document_nats, dtype=np.float64))
    interval = bootstrap_mean(document_nats, tokens)
    low, high = interval or (None, None)
    row |= {
        f"{prefix}nats": nats,
        f"{prefix}perplexity": perplexity(nats, sum(tokens)),
        f"{prefix}perplexity_low": interval and perplexity(low, 1),
        f"{prefix}perplexity_high": interval and perplexity(high, 1),
        f"{prefix}bits_per_byte": bits_per_byte(nats, num_bytes),
        f"{prefix}non_finite_tokens": scores[f"{prefix}non_finite_tokens"],
        f"{prefix}document_nats": document_nats,
    }
  return row


def make_groups(
    configs: Sequence[ExperimentConfig], runs: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
  """Groups runs that differ only in their seed.

  Two runs with the same seed, or two steps of one run, are never grouped.

  Args:
    configs: one per run.
    runs: `runs` of the results.
  """
  members: dict[str, list[dict[str, Any]]] = {}
  seen: collections.Counter[tuple[str, int]] = collections.Counter()
  for config, run in zip(configs, runs, strict=True):
    settings = experiment_to_dict(config)
    seed = settings.pop("seed")
    settings["data"].pop("dir", None)  # Only where the text is stored.
    kind = json.dumps([settings, run["step"]], sort_keys=True)
    members.setdefault(f"{kind}{seen[kind, seed]}", []).append(run)
    seen[kind, seed] += 1
  groups = []
  for name, group in zip(_names(members.values()), members.values()):
    rows = []
    for of_length in zip(*(run["rows"] for run in group), strict=True):
      row = {"length": of_length[0]["length"]}
      for field in ("perplexity", "crop_perplexity"):
        values = [r[field] for r in of_length]
        # Infinite values have no deviation; that of huge ones may overflow.
        with np.errstate(invalid="ignore", over="ignore"):
          std = float(np.std(values, ddof=1)) if len(values) > 1 else None
        row |= {f"{field}_mean": float(np.mean(values)), f"{field}_std": std}
      rows.append(row)
    groups.append(
        {
            "name": name,
            "encoding": group[0]["encoding"],
            "train_length": group[0]["train_length"],
            "runs": [run["name"] for run in group],
            "rows": rows,
        }
    )
  return groups


def _names(groups: Sequence[list[dict[str, Any]]]) -> list[str]:
  """Returns unique names: encodings if they suffice, else names of runs."""
  runs = [", ".join(run["name"] for run in group) for group in groups]
  if all(len(group) == 1 for group in groups):
    return runs
  encodings = [group[0]["encoding"] for group in groups]
  trained = [
      f"{encoding}, trained at {group[0]['train_length']}"
      for encoding, group in zip(encodings, groups)
  ]
  for names in (encodings, trained):
    if len(set(names)) == len(names):
      return names
  return runs


def make_comparisons(
    groups: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
  """Compares all pairs of groups at each length, and each with its crop.

  Args:
    groups: from `make_groups`.
    runs: `runs` of the results.
  """
  runs_by_name = {run["name"]: run for run in runs}
  comparisons = []
  for index, row in enumerate(runs[0]["rows"]):

    def document_nats(group, field, index=index):
      """Returns the mean over seeds for each document, [D]."""
      of_runs = [runs_by_name[n]["rows"][index][field] for n in group["runs"]]
      return np.mean(of_runs, axis=0, dtype=np.float64)

    full = [document_nats(group, "document_nats") for group in groups]
    cropped = [document_nats(group, "crop_document_nats") for group in groups]
    names = [group["name"] for group in groups]
    pairs = [
        *itertools.combinations(zip(names, full), 2),
        *zip(zip(names, full), (("crop", nats) for nats in cropped)),
    ]
    for (a, a_nats), (b, b_nats) in pairs:
      with np.errstate(invalid="ignore"):  # inf - inf
        differences = a_nats - b_nats
      interval = bootstrap_mean(differences, row["document_tokens"])
      low, high = interval or (None, None)
      comparisons.append(
          {
              "length": row["length"],
              "a": a,
              "b": b,
              "difference": float(differences.sum() / row["tokens"]),
              "difference_low": low,
              "difference_high": high,
              "p_value": sign_flip_p_value(differences),
          }
      )
  return comparisons
