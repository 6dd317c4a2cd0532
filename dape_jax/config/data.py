"""Settings of what a model is trained on: text, or a generated task."""

import dataclasses

from dape_jax.config.checks import require, require_choice, require_positive
from dape_jax.data import ByteTokenizer, tasks
from dape_jax.data.batches import check_weights
from dape_jax.data.loading import source_names
from dape_jax.data.sources import SOURCES


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """Training text.

  All sources have one tokenizer. A prepared folder keeps the one that made it;
  built-in corpora are prepared with any. So `tokenizer` may be left out: it is
  that of the folders, or else "bytes". One that is given must be that of all
  folders.

  Attributes:
    source: "code" (the embedded code corpus), "stdlib" (the standard library
      alone) or a folder that `python -m dape_jax.data.prepare` made, written
      with a slash: "./mine". Several are separated by commas. "" is for config
      files that wait for one.
    weights: of several sources, one number each: the proportion of rows, of
      training and of validation. Of one source, none.
    tokenizer: "" (see above), "bytes" or a file (`data.make_tokenizer`).
    dir: folder for built-in corpora; "" means $DAPE_JAX_DATA or
      ~/.cache/dape_jax.
    length: tokens per training window.
    packing: "segments" (documents packed with segment ids, positions restart
      and no loss across borders) or "plain" (windows cut through the stream,
      the papers' way).
  """

  source: str = "code"
  weights: tuple[float, ...] = ()
  tokenizer: str = ""
  dir: str = ""
  length: int = 512
  packing: str = "segments"

  def __post_init__(self):
    require_positive("data", self, "length")
    require_choice("data.packing", self.packing, ("segments", "plain"))
    names = source_names(self.source)
    numbers = isinstance(self.weights, tuple | list) and all(
        type(weight) in (int, float) for weight in self.weights
    )
    require(
        numbers, "data.weights", self.weights, "must be a tuple of numbers."
    )
    check_weights(self.weights, len(names))
    object.__setattr__(self, "weights", tuple(map(float, self.weights)))
    # Said outright, so that runs compare whichever way theirs was given.
    if not self.tokenizer and names and set(names) <= set(SOURCES):
      object.__setattr__(self, "tokenizer", ByteTokenizer.name)

  @property
  def row_length(self) -> int:
    """Returns the tokens of a training row."""
    return self.length


@dataclasses.dataclass(frozen=True)
class TaskConfig:
  """A generated task in the place of training text (data/tasks).

  Attributes:
    task: name of the task.
    length: of its longest problems; lengths are uniform from the shortest that
      the task has.
    lengths_per_batch: so many lengths are drawn for a batch (arXiv 2305.16843
      draws one), each for an equal part of its rows.
  """

  task: str
  length: int = 40
  lengths_per_batch: int = 1

  def __post_init__(self):
    require_positive("data", self, "length", "lengths_per_batch")
    require_choice("data.task", self.task, tuple(tasks.TASKS))
    shortest = tasks.make(self.task).min_length
    require(
        self.length >= shortest,
        "data.length",
        self.length,
        f"problems of {self.task} have at least {shortest}.",
    )

  @property
  def row_length(self) -> int:
    """Returns the tokens of a training row, the longest problem's."""
    return tasks.make(self.task).row_length(self.length)
