"""What a report compares: runs, or groups of runs that differ in the seed."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Value:
  """A number of a report, with its spread if there is one.

  Attributes:
    mean: the number itself, for several runs their mean.
    std: sample standard deviation over several runs, else None.
    low, high: 95% bootstrap interval over documents of a single run, or None.
  """

  mean: float
  std: float | None = None
  low: float | None = None
  high: float | None = None


@dataclasses.dataclass(frozen=True)
class Subject:
  """A run, or a group of runs that differ in nothing but the seed.

  Attributes:
    name: the one that comparisons use.
    encoding: registry name of the position encoding.
    train_length: tokens per training window.
    runs: their results, see `results_file`.
    group: the group's results, None for a run.
  """

  name: str
  encoding: str
  train_length: int
  runs: tuple[dict[str, Any], ...]
  group: dict[str, Any] | None = None

  @property
  def short(self) -> str:
    """Name and encoding."""
    name = self.name.removesuffix(f", trained at {self.train_length}")
    return name if self.encoding in name else f"{name} ({self.encoding})"

  @property
  def label(self) -> str:
    """Name, encoding, number of runs and training length."""
    count = f" ({len(self.runs)} runs)" if len(self.runs) > 1 else ""
    return f"{self.short}{count}, trained at {self.train_length}"

  def value(self, field: str, index: int) -> Value:
    """Returns a number at one of the lengths.

    Args:
      field: of a run's rows: "perplexity", "crop_perplexity", "bits_per_byte" or
        "crop_bits_per_byte".
      index: of the length.
    """
    rows = [run["rows"][index] for run in self.runs]
    if len(rows) == 1:
      (row,) = rows
      low, high = row.get(f"{field}_low"), row.get(f"{field}_high")
      return Value(row[field], low=low, high=high)
    if f"{field}_mean" in (row := self.group["rows"][index]):
      return Value(row[f"{field}_mean"], row[f"{field}_std"])
    return mean_and_std([row[field] for row in rows])


def mean_and_std(values: Sequence[float]) -> Value:
  """Returns the mean of one value or more, and their standard deviation."""
  # Infinite values have no deviation, and that of huge ones may be infinite.
  with np.errstate(invalid="ignore", over="ignore"):
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
  return Value(float(np.mean(values)), std)


def subjects(results: dict[str, Any]) -> list[Subject]:
  """Returns what the report compares.

  Args:
    results: see `results_file`.

  Returns:
    The groups if one of them has several runs, else the runs.
  """
  runs = {run["name"]: run for run in results["runs"]}
  if all(len(group["runs"]) == 1 for group in results["groups"]):
    return [
        Subject(name, run["encoding"], run["train_length"], (run,))
        for name, run in runs.items()
    ]
  return [
      Subject(
          group["name"],
          group["encoding"],
          group["train_length"],
          tuple(runs[name] for name in group["runs"]),
          group,
      )
      for group in results["groups"]
  ]


def differing(
    compared: Sequence[Subject],
) -> tuple[dict[str, list[int]], list[str]]:
  """Returns what differs between subjects, and what all of them share.

  Returns:
    {"runs" or "trained at": number for each subject} of what differs, and
    words for what does not.
  """
  facts = {
      "runs": [len(subject.runs) for subject in compared],
      "trained at": [subject.train_length for subject in compared],
  }
  differ = {name: v for name, v in facts.items() if len(set(v)) > 1}
  shared = []
  if "trained at" not in differ:
    shared.append(f"trained at {compared[0].train_length}")
  if "runs" not in differ and len(compared[0].runs) > 1:
    shared.append(f"{len(compared[0].runs)} runs each")
  return differ, shared


def describe(run: dict[str, Any]) -> str:
  """Returns a run's name with its encoding and training length."""
  name, encoding = run["name"], run["encoding"]
  return Subject(name, encoding, run["train_length"], (run,)).label


def numbers(first: float, *others: float) -> list[str]:
  """Returns numbers with as many decimals as make four digits of the first."""
  if not math.isfinite(first) or abs(first) < 10:
    form = ".3f"
  elif abs(first) < 1e6:
    form = f".{max(0, 3 - int(math.log10(abs(first))))}f"
  else:
    form = ".3e"
  return [f"{value:{form}}" for value in (first, *others)]


def number(value: float) -> str:
  """Returns the number with four digits, "nan" or "inf"."""
  return numbers(value)[0]


def value_text(value: Value, *, interval: bool = False) -> str:
  """Returns "6.071 +- 0.012" for several runs, for one "6.071" or with interval.

  Args:
    value: a number of the report.
    interval: adds " [low, high]" where there is one.
  """
  if value.std is not None:
    return " +- ".join(numbers(value.mean, value.std))
  if interval and value.low is not None:
    text, low, high = numbers(value.mean, value.low, value.high)
    return f"{text} [{low}, {high}]"
  return number(value.mean)
