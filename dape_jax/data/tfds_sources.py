"""Reads documents from tensorflow-datasets datasets without TensorFlow."""

import os
from collections.abc import Iterator
from typing import Any

from dape_jax.data.manifest import SPLITS
from dape_jax.data.text_files import Record
from dape_jax.errors import ConfigError, did_you_mean

_EXAMPLES = 256  # examples read at a time


class TfdsSplit:
  """A split of a prepared dataset.

  Attributes:
    name: "NAME/CONFIG/VERSION SPLIT".
    size: number of examples.
    unit: "examples".
  """

  unit = "examples"

  def __init__(self, builder: Any, split: str, text_field: str):
    """Initializes.

    Args:
      builder: read-only builder of array_record files.
      split: one of its splits.
      text_field: the text feature.
    """
    self.name = f"{builder.info.full_name} {split}"
    self.size = builder.info.splits[split].num_examples
    self._bytes = builder.info.splits[split].num_bytes
    self._builder, self._split, self._field = builder, split, text_field

  def identity(self) -> dict[str, Any]:
    """Returns JSON values that change whenever the texts do."""
    return {
        "name": self.name,
        "examples": self.size,
        "bytes": self._bytes,
        "text_field": self._field,
    }

  def records(self, skip: int) -> Iterator[Record]:
    """Yields the records after the first `skip`, up to a damaged read."""
    number = skip + 1
    try:
      source = self._builder.as_data_source(self._split)
      for first in range(skip, self.size, _EXAMPLES):
        indices = range(first, min(first + _EXAMPLES, self.size))
        for example in source.__getitems__(indices):
          text, problem = example[self._field], ""
          try:
            text.decode()
          except UnicodeDecodeError:
            text, problem = b"", "not UTF-8"
          yield Record(number, text, problem, number)
          number += 1
    # array_record has no common exception type.
    except (OSError, RuntimeError, ValueError, IndexError) as error:
      yield Record(number, b"", f"damaged or truncated ({error})", 0)

  def where(self, number: int) -> str:
    """Returns the name of an example in messages."""
    return f"{self.name}:{number}"


def open_dataset(
    name: str, data_dir: str, text_field: str
) -> dict[str, TfdsSplit]:
  """Returns the splits of a prepared dataset.

  Args:
    name: dataset name as in `tfds.builder`, such as "c4/en" or "pg19".
    data_dir: where it was prepared; "" selects the default of
      tensorflow-datasets.
    text_field: the text feature.

  Raises:
    ConfigError: the dataset is not prepared there as array_record files, or
      lacks the feature or a train split.
  """
  import tensorflow_datasets as tfds

  if "://" in data_dir:
    raise ConfigError(
        f"--tfds_data_dir={data_dir}: copy it to this machine first."
    )
  data_dir = os.path.expanduser(data_dir)
  where = f", data_dir={data_dir!r}" if data_dir else ""
  command = (
      "python -c \"import tensorflow_datasets as tfds; tfds.builder('"
      f"{name}'{where}).download_and_prepare(file_format='array_record')\""
  )
  try:
    builder = tfds.core.read_only_builder.builder_from_files(
        name, data_dir=data_dir or None
    )
  # tensorflow-datasets has no common exception type.
  except Exception as error:
    raise ConfigError(
        f"--tfds={name} is not prepared in"
        f" {data_dir or '~/tensorflow_datasets'}. Preparing most datasets needs"
        " TensorFlow once, in any environment: pip install"
        f" 'dape_jax[tfds-prepare]' && {command}"
    ) from error
  file_format = builder.info.file_format
  if file_format is None or file_format.value != "array_record":
    raise ConfigError(
        f"--tfds={name} is prepared as {file_format and file_format.value}, which"
        f" only TensorFlow reads; prepare it as array_record: {command}"
    )
  features = dict(builder.info.features)
  texts = [n for n, f in features.items() if isinstance(f, tfds.features.Text)]
  if text_field not in texts:
    raise ConfigError(
        f"--text_field={text_field} is not a text feature of"
        f" --tfds={name}.{did_you_mean(text_field, texts)}"
    )
  if "train" not in builder.info.splits:
    raise ConfigError(
        f"--tfds={name} has no train split, only"
        f" {', '.join(builder.info.splits)}: choose another dataset."
    )
  return {
      split: TfdsSplit(builder, split, text_field)
      for split in SPLITS
      if split in builder.info.splits
  }
