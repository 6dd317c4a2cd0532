"""The runs or groups of runs that a report compares, and their numbers."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Value:
  """A reported number, with its spread if known.

  Attributes:
    mean: the number of a single run, or the mean over several.
    std: sample standard deviation over several runs, else None.
    low, high: 95% bootstrap interval over documents of a single run, or None.
  """

  mean: float
  std: float | None = None
  low: float | None = None
  high: float | None = None

  @classmethod
  def of(cls, values: Sequence[float]) -> "Value":
    """Returns the mean of the values and their standard deviation."""
    # The deviation of infinite values is NaN; that of huge ones may overflow.
    with np.errstate(invalid="ignore", over="ignore"):
      std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return cls(float(np.mean(values)), std)

  def text(self, *, interval: bool = False) -> str:
    """Returns "6.071 +- 0.012" for several runs, "6.071" for one.

    Args:
      interval: whether to append " [low, high]" if there is an interval.
    """
    if self.std is not None:
      return " +- ".join(numbers(self.mean, self.std))
    if interval and self.low is not None:
      text, low, high = numbers(self.mean, self.low, self.high)
      return f"{text} [{low}, {high}]"
    return number(self.mean)


@dataclasses.dataclass(frozen=True)
class Subject:
  """A run, or a group of runs that differ only in the seed.

  Attributes:
    name: the name used in comparisons.
    runs: their results, see `results_file`.
  """

  name: str
  runs: tuple[dict[str, Any], ...]

  @property
  def train_length(self) -> int:
    """Tokens per training window."""
    return self.runs[0]["train_length"]

  @property
  def short(self) -> str:
    """Name and encoding."""
    name = self.name.removesuffix(f", trained at {self.train_length}")
    encoding = self.runs[0]["encoding"]
    return name if encoding in name else f"{name} ({encoding})"

  @property
  def label(self) -> str:
    """Name, encoding, number of runs and training length."""
    count = f" ({len(self.runs)} runs)" if len(self.runs) > 1 else ""
    return f"{self.short}{count}, trained at {self.train_length}"

  def value(self, field: str, index: int) -> Value:
    """Returns a number at one of the lengths.

    Args:
      field: "perplexity", "crop_perplexity", "bits_per_byte" or
        "crop_bits_per_byte".
      index: index of the length.
    """
    rows = [run["rows"][index] for run in self.runs]
    value = Value.of([row[field] for row in rows])
    if len(rows) > 1:
      return value
    low, high = (rows[0].get(f"{field}_{end}") for end in ("low", "high"))
    return dataclasses.replace(value, low=low, high=high)

  def retrieval(
      self, task: str, lengths: Sequence[int], field: str
  ) -> np.ndarray:
    """Returns retrieval scores over all depths.

    Args:
      task: one of `retrieval_values(results, "task")`.
      lengths: text lengths.
      field: "exact_match" or "token_accuracy".

    Returns:
      float64 [runs, lengths], NaN where not measured.
    """
    return np.array(
        [
            [_retrieval_mean(run, field, task=task, length=n) for n in lengths]
            for run in self.runs
        ]
    )


def each_run(results: dict[str, Any]) -> list[Subject]:
  """Returns each run as its own subject."""
  return [Subject(run["name"], (run,)) for run in results["runs"]]


def subjects(results: dict[str, Any]) -> list[Subject]:
  """Returns the groups if any of them has several runs, else the runs.

  Args:
    results: see `results_file`.
  """
  if all(len(group["runs"]) == 1 for group in results["groups"]):
    return each_run(results)
  runs = {run["name"]: run for run in results["runs"]}
  return [
      Subject(group["name"], tuple(runs[name] for name in group["runs"]))
      for group in results["groups"]
  ]


def differing(
    compared: Sequence[Subject],
) -> tuple[dict[str, list[int]], list[str]]:
  """Returns which facts differ between subjects and which they share.

  Returns:
    {"runs" or "trained at": number for each subject} for what differs, and
    a phrase for each fact they share.
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


def labels(compared: Sequence[Subject]) -> list[str]:
  """Returns names for legends, with the training length if it differs."""
  differ, _ = differing(compared)
  return [s.label if differ else s.short for s in compared]


def describe(run: dict[str, Any]) -> str:
  """Returns a run's name with its encoding and training length."""
  return Subject(run["name"], (run,)).label


def retrieval_values(
    results: dict[str, Any], field: str, task: str | None = None
) -> list[Any]:
  """Returns the distinct values of "task", "length" or "depth", in order.

  Args:
    results: see `results_file`.
    field: "task" (in order of appearance), "length" or "depth" (increasing;
      [] for a task without depths).
    task: restricts the values to one task; None for all.
  """
  values = dict.fromkeys(
      entry[field]
      for run in results["runs"]
      for entry in run["retrieval"]
      if task in (None, entry["task"]) and entry[field] is not None
  )
  return list(values) if field == "task" else sorted(values)


def retrieval_by_depth(
    run: dict[str, Any], task: str, depths: Sequence[float], lengths: list[int]
) -> np.ndarray:
  """Returns exact match as float64 [depths, lengths], NaN if not measured."""
  scores = [
      _retrieval_mean(run, "exact_match", task=task, depth=depth, length=n)
      for depth in depths
      for n in lengths
  ]
  return np.reshape(scores, (len(depths), len(lengths)))


def _retrieval_mean(run: dict[str, Any], field: str, **where: Any) -> float:
  """Returns the mean over samples of the entries that match, NaN if none do."""
  entries = [e for e in run["retrieval"] if where.items() <= e.items()]
  if not entries:
    return math.nan
  weights = [entry["samples"] for entry in entries]
  return float(np.average([e[field] for e in entries], weights=weights))


def numbers(first: float, *others: float) -> list[str]:
  """Returns numbers with the decimals that give the first one four digits."""
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
