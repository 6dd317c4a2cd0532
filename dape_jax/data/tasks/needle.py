"""Needle tasks: digits hidden in filler and queried at the end of the row.

Symbolic versions of the retrieval tasks for language models. They share a
vocabulary, so a model trained on one can be evaluated on another.
"""

import dataclasses

import numpy as np

from dape_jax.data.tasks.recall import RecallTask, with_answers
from dape_jax.data.tasks.task import Examples, Task
from dape_jax.errors import ConfigError

_NUM_KEYS = 16
_NUM_FILLERS = 16

# Ids after those of the ten digits.
MARK = 10  # begins a needle
ASK = 11  # begins the question
KEYS = 12
FILLERS = KEYS + _NUM_KEYS


@dataclasses.dataclass(frozen=True, kw_only=True)
class NeedleTask(RecallTask):
  """Finds the digits of marked needles in uniform filler.

  A row of exactly `length` tokens is a context and a question. The context is
  filler and needles; a needle is MARK, its key if it has one, and its digits.
  The question is ASK, the key, and the requested digits in context order
  without the last: each digit is the answer at the token before it (teacher
  forcing). Digits are uniform, including the first.

  Attributes:
    num_digits: digits per needle.
    keys: number of different keys; 0 for needles without keys.
    values: needles per key; those of one random key are queried.
  """

  vocab_size = FILLERS + _NUM_FILLERS
  num_outputs = 10
  chance = 0.1
  num_digits: int = 3
  keys: int
  values: int = 1

  @property
  def min_length(self) -> int:
    """Returns the number of tokens in a row without filler."""
    num_needles = max(1, self.keys) * self.values
    return num_needles * self._needle_length + self._question_length

  @property
  def _needle_length(self) -> int:
    return 1 + bool(self.keys) + self.num_digits

  @property
  def _question_length(self) -> int:
    return bool(self.keys) + self.values * self.num_digits

  def sample(
      self,
      rng: np.random.Generator,
      length: int,
      batch_size: int,
      depth: float | None = None,
  ) -> Examples:
    """Returns problems of one length, a pure function of the state of `rng`.

    Args:
      rng: source of all choices.
      length: T.
      batch_size: B.
      depth: fraction of the filler before the queried needle, 0 to 1; several
        queried needles are then adjacent. None: every needle has an independent
        uniform place.

    Raises:
      ConfigError: `depth` is not in 0..1 or `length` is below `min_length`.
    """
    if depth is not None and not 0 <= depth <= 1:
      raise ConfigError(f"depth={depth}: must be in 0..1.")
    shape = batch_size, self.row_length(length)
    num_fillers = length - self.min_length
    queried, needles = self.values, max(1, self.keys) * self.values
    # Before sorting, the first needles are the queried ones.
    depths_BxN = rng.random((batch_size, needles))
    if depth is not None:
      depths_BxN[:, :queried] = depth
    order_BxN = depths_BxN.argsort(axis=1, kind="stable")
    depths_BxN = np.take_along_axis(depths_BxN, order_BxN, axis=1)
    before_BxN = np.minimum(depths_BxN * (num_fillers + 1), num_fillers)
    starts_BxN = np.int64(before_BxN) + self._needle_length * np.arange(needles)

    digits_BxNxD = rng.integers(0, 10, (batch_size, needles, self.num_digits))
    needles_BxNxW = np.full((batch_size, needles, self._needle_length), MARK)
    needles_BxNxW[..., -self.num_digits :] = digits_BxNxD
    if self.keys:
      keys_BxK = KEYS + rng.random((batch_size, _NUM_KEYS)).argsort(axis=1)
      needles_BxNxW[..., 1] = np.take_along_axis(
          keys_BxK, order_BxN // self.values, axis=1
      )
    answers_BxA = digits_BxNxD[order_BxN < queried].reshape(batch_size, -1)

    tokens_BxT = rng.integers(FILLERS, self.vocab_size, shape)
    places_BxNxW = starts_BxN[..., None] + np.arange(self._needle_length)
    np.put_along_axis(
        tokens_BxT,
        places_BxNxW.reshape(batch_size, -1),
        needles_BxNxW.reshape(batch_size, -1),
        axis=1,
    )
    first = length - self._question_length
    tokens_BxT[:, first] = ASK
    if self.keys:
      tokens_BxT[:, first + 1] = keys_BxK[:, 0]
    num_answers = answers_BxA.shape[1]
    tokens_BxT[:, length - num_answers + 1 :] = answers_BxA[:, :-1]
    places_A = np.arange(length - num_answers, length)
    return with_answers(tokens_BxT, places_A, answers_BxA)


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        # Mohtashami and Jaggi 2023 (Landmark Attention, arXiv 2305.16300): a
        # number below 50,000 between repetitions of a neutral text.
        NeedleTask("passkey", num_digits=5, keys=0),
        # Hsieh et al. 2024 (RULER, arXiv 2404.06654): niah_single, and its
        # niah_multikey and niah_multivalue with four needles as there.
        # Departures: 3 digits instead of 7, to fit short rows; niah_multivalue
        # accepts answers in any order, here the order is that of the context.
        NeedleTask("needle_single", keys=1),
        NeedleTask("needle_multi_key", keys=4),
        NeedleTask("needle_multi_value", keys=1, values=4),
    )
}
