"""Settings of the training data: text or a generated task."""

import dataclasses

from dape_jax.config.checks import (
    check_fields,
    one_of,
    positive,
    require,
    require_choice,
)
from dape_jax.data import ByteTokenizer, tasks
from dape_jax.data.batches import check_weights
from dape_jax.data.loading import source_names
from dape_jax.data.sources import SOURCES


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """Training text.

  All sources share one tokenizer. A prepared folder has its own, which is the
  default; if `tokenizer` is set, it must match. Built-in corpora work with any
  tokenizer and default to "bytes" when used without a folder.

  Attributes:
    source: "code" (the embedded code corpus), "stdlib" (the standard library
      alone), a folder made by `python -m dape_jax.data.prepare`, written with a
      slash ("./mine"), or a comma-separated list of these. "" must be set on
      the command line.
    weights: with several sources, the proportion of training and validation
      rows from each; empty with one source.
    tokenizer: "" for the default above, "bytes" or a file
      (`data.make_tokenizer`).
    dir: folder for built-in corpora; "" means $DAPE_JAX_DATA or
      ~/.cache/dape_jax.
    length: tokens per training window.
    packing: "segments" (packed documents with segment ids; positions restart
      and there is no loss across boundaries) or "plain" (windows cut from the
      token stream, as in the papers).
  """

  source: str = "code"
  weights: tuple[float, ...] = ()
  tokenizer: str = ""
  dir: str = ""
  length: int = positive(512)
  packing: str = one_of("segments", "plain")

  def __post_init__(self):
    check_fields("data", self)
    names = source_names(self.source)
    numbers = isinstance(self.weights, tuple | list) and all(
        type(weight) in (int, float) for weight in self.weights
    )
    require(
        numbers, "data.weights", self.weights, "must be a tuple of numbers."
    )
    check_weights(self.weights, len(names))
    object.__setattr__(self, "weights", tuple(map(float, self.weights)))
    # Fill in the default, so that configs with and without it compare equal.
    if not self.tokenizer and names and set(names) <= set(SOURCES):
      object.__setattr__(self, "tokenizer", ByteTokenizer.name)

  @property
  def row_length(self) -> int:
    """Returns the number of tokens in a training row."""
    return self.length


@dataclasses.dataclass(frozen=True)
class TaskConfig:
  """A generated task instead of training text (data/tasks).

  Attributes:
    task: name of the task.
    length: maximum problem length; lengths are drawn uniformly from the task's
      minimum up to it.
    lengths_per_batch: number of lengths drawn per batch; each gets an equal
      share of the rows (arXiv 2305.16843 draws one).
  """

  task: str
  length: int = positive(40)
  lengths_per_batch: int = positive(1)

  def __post_init__(self):
    check_fields("data", self)
    require_choice("data.task", self.task, tuple(tasks.TASKS))
    shortest = tasks.make(self.task).min_length
    require(
        self.length >= shortest,
        "data.length",
        self.length,
        f"the shortest problem of {self.task} is {shortest}.",
    )

  @property
  def row_length(self) -> int:
    """Returns the number of tokens in a training row of the longest problem."""
    return tasks.make(self.task).row_length(self.length)
