"""Retrieval scores of a report, averaged over depths or laid out by depth."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dape_jax.evaluation.report.subjects import Subject, Value, mean_and_std


def tasks(results: dict[str, Any]) -> list[str]:
  """Returns the tasks that some run was given, in order."""
  return list(
      dict.fromkeys(
          entry["task"] for run in results["runs"] for entry in run["retrieval"]
      )
  )


def lengths(results: dict[str, Any]) -> list[int]:
  """Returns the lengths at which some run was asked, increasing."""
  return sorted(
      {e["length"] for run in results["runs"] for e in run["retrieval"]}
  )


def score(run: dict[str, Any], task: str, length: int, field: str) -> float:
  """Returns a run's score at a length over all depths, NaN if not measured."""
  entries = [
      entry
      for entry in run["retrieval"]
      if (entry["task"], entry["length"]) == (task, length)
  ]
  if not entries:
    return math.nan
  return float(
      np.average(
          [entry[field] for entry in entries],
          weights=[entry["samples"] for entry in entries],
      )
  )


def scores(
    subject: Subject, task: str, lengths: Sequence[int], field: str
) -> np.ndarray:
  """Returns the scores over all depths of each of the subject's runs.

  Args:
    subject: a run or a group of runs.
    task: one of `tasks`.
    lengths: of texts.
    field: "exact_match" or "token_accuracy".

  Returns:
    float64 [runs, lengths], NaN where not measured.
  """
  return np.array(
      [[score(run, task, n, field) for n in lengths] for run in subject.runs]
  )


def values(
    subject: Subject, task: str, lengths: Sequence[int], field: str
) -> list[Value]:
  """Returns mean and deviation of `scores` over the runs, for each length."""
  return [mean_and_std(s) for s in scores(subject, task, lengths, field).T]


def by_depth(
    run: dict[str, Any], task: str, depths: Sequence[float], lengths: list[int]
) -> np.ndarray:
  """Returns exact match as float64 [depths, lengths], NaN if not measured."""
  known = {
      (entry["depth"], entry["length"]): entry["exact_match"]
      for entry in run["retrieval"]
      if entry["task"] == task
  }
  return np.array(
      [[known.get((d, n), math.nan) for n in lengths] for d in depths]
  )


def depths(results: dict[str, Any], task: str) -> list[float]:
  """Returns the depths of a task, increasing; [] if it has none."""
  return sorted(
      {
          entry["depth"]
          for run in results["runs"]
          for entry in run["retrieval"]
          if entry["task"] == task and entry["depth"] is not None
      }
  )
