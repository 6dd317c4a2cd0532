"""The batches of a run: of text, or of a generated task."""

import functools

from dape_jax.config import ExperimentConfig, TaskConfig
from dape_jax.data import TaskBatches, TrainBatches, load_corpora, tasks
from dape_jax.data.batches import Batches
from dape_jax.errors import ConfigError


def _check_size(field: str, size: int, needed: int, of: str, fix: int) -> None:
  if size < needed:
    raise ConfigError(
        f"config.model.{field}={size} is less than the {needed} of {of}; use"
        f" {fix}."
    )


def make_batches(config: ExperimentConfig) -> tuple[Batches, Batches]:
  """Returns the batches of training and those of validation.

  Runs with different seeds have the same validation.

  Raises:
    ConfigError: the model has too few ids for them, or see `load_corpora`.
  """
  sharing = dict(
      length=config.data.length,
      batch_size=config.train.batch_size,
  )
  vocab_size = config.model.vocab_size
  if isinstance(config.data, TaskConfig):
    task = tasks.make(config.data.task)
    of = f"config.data.task={config.data.task!r}"
    needed = task.vocab_size
    _check_size("vocab_size", vocab_size, needed, of, needed)
    outputs = config.model.num_outputs or vocab_size
    needed = task.num_outputs
    _check_size("num_outputs", outputs, needed, of, needed)
    batches = functools.partial(
        TaskBatches,
        config.data.task,
        lengths_per_batch=config.data.lengths_per_batch,
        **sharing,
    )
    # No run has this seed. Not 2**32: NumPy's generators read it as the words 0 and
    # 1, so that its first batch would be the second of seed 0.
    return batches(seed=config.seed), batches(seed=2**64)
  corpora = load_corpora(
      source=config.data.source,
      tokenizer=config.data.tokenizer,
      data_dir=config.data.dir,
  )
  tokenizer = corpora[0].tokenizer
  _check_size(
      "vocab_size",
      vocab_size,
      tokenizer.vocab_size,
      f"the tokenizer {tokenizer.name!r}",
      tokenizer.padded_vocab_size,
  )
  batches = functools.partial(
      TrainBatches,
      packing=config.data.packing,
      weights=config.data.weights,
      **sharing,
  )
  return (
      batches([c.split("train") for c in corpora], seed=config.seed),
      batches([c.split("validation") for c in corpora], seed=0),
  )
