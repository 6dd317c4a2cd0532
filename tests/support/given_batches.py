"""Batches of fixed rows."""

from dape_jax.data.batches import Batches


class GivenBatches(Batches):
  """The same rows at every step."""

  def __init__(self, rows):
    batch_size, row_length = rows["inputs"].shape
    super().__init__({"batch_size": batch_size}, row_length)
    self._given = rows

  def _rows(self, step, rows):
    return {name: x[list(rows)] for name, x in self._given.items()}
