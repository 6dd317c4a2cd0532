"""Recall tasks: answers are tokens that occurred earlier in the row.

All are next-token predictions: the answer is expected at the token before its
place.
"""

import dataclasses

import numpy as np

from dape_jax.data.tasks.task import Examples, Task
from dape_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class RecallTask(Task):
  """A task that rejects lengths below `min_length`.

  Attributes:
    name: its name in `TASKS`, for messages.
  """

  name: str

  def row_length(self, length: int) -> int:
    """Returns T, by default `length`.

    Raises:
      ConfigError: `length` is below `min_length`.
    """
    if length < self.min_length:
      raise ConfigError(
          f"length={length} is too short for {self.name}; use at"
          f" least {self.min_length}."
      )
    return length


def with_answers(
    tokens_BxT: np.ndarray, places_A: np.ndarray, answers_BxA: np.ndarray
) -> Examples:
  """Returns examples whose answers are both trained and scored.

  Args:
    tokens_BxT: the rows.
    places_A: where answers are expected, [A] or [B, A].
    answers_BxA: the answers.
  """
  places_BxA = np.broadcast_to(places_A, answers_BxA.shape)
  targets_BxT = np.zeros(tokens_BxT.shape, np.int32)
  np.put_along_axis(targets_BxT, places_BxA, answers_BxA, axis=1)
  scored_BxT = np.zeros(tokens_BxT.shape, bool)
  np.put_along_axis(scored_BxT, places_BxA, True, axis=1)
  return Examples(
      np.int32(tokens_BxT), targets_BxT, trained=scored_BxT, scored=scored_BxT
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlipFlop(RecallTask):
  """Flip-flop: a read returns the last written bit.

  A row is pairs (instruction, bit): the first instruction is write, the last is
  read, and the others are ignore with probability `ignored`, else write or read
  with equal probability. Bits are uniform, except that the bit after a read is
  the answer. Answers are expected at the read instructions.

  FFL(`ignored`) of Liu et al. 2023 (arXiv 2306.00946), who train on FFL(0.8)
  with rows of 512 tokens, and test on FFL(0.98), whose writes and reads are
  rare, and FFL(0.1). An odd length gives a row of one token fewer.

  Attributes:
    ignored: probability of the instruction ignore.
  """

  vocab_size = 5
  num_outputs = 2
  chance = 0.5
  min_length = 4
  ignored: float
  variants: tuple[str, ...] = ()

  # Ids after the two bits.
  WRITE, IGNORE, READ = 2, 3, 4

  def row_length(self, length: int) -> int:
    return super().row_length(length) // 2 * 2

  def sample(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> Examples:
    shape = batch_size, self.row_length(length) // 2
    rest = (1 - self.ignored) / 2
    instructions_BxP = rng.choice(
        [self.WRITE, self.IGNORE, self.READ],
        shape,
        p=[rest, self.ignored, rest],
    )
    instructions_BxP[:, 0] = self.WRITE
    instructions_BxP[:, -1] = self.READ
    bits_BxP = rng.integers(0, 2, shape)
    last_write_BxP = np.maximum.accumulate(
        np.where(instructions_BxP == self.WRITE, np.arange(shape[1]), 0), axis=1
    )
    written_BxP = np.take_along_axis(bits_BxP, last_write_BxP, axis=1)
    is_read_BxP = instructions_BxP == self.READ
    bits_BxP = np.where(is_read_BxP, written_BxP, bits_BxP)
    tokens_BxT = np.int32(_interleave(instructions_BxP, bits_BxP))
    targets_BxT = np.int32(_interleave(written_BxP, 0))
    scored_BxT = _interleave(is_read_BxP, False)
    return Examples(tokens_BxT, targets_BxT, scored_BxT, scored_BxT)


class Copy(RecallTask):
  """A string, a separator, and a copy of the string, which is the answer.

  `length` symbols are uniform over 8. Answer i is expected at the separator for
  i = 0, else at symbol i - 1 of the copy (teacher forcing); the last symbol of
  the copy is omitted. After Jelassi et al. 2024 (arXiv 2402.01032), who copy
  strings of letters.
  """

  vocab_size = 9
  num_outputs = 8
  chance = 1 / 8
  min_length = 1

  SEPARATOR = 8

  def row_length(self, length: int) -> int:
    return 2 * super().row_length(length)

  def sample(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> Examples:
    num_tokens = self.row_length(length)
    string_BxL = rng.integers(0, self.num_outputs, (batch_size, length))
    tokens_BxT = np.full((batch_size, num_tokens), self.SEPARATOR)
    tokens_BxT[:, :length] = string_BxL
    tokens_BxT[:, length + 1 :] = string_BxL[:, :-1]
    return with_answers(tokens_BxT, np.arange(length, num_tokens), string_BxL)


class Induction(RecallTask):
  """The token that followed the previous occurrence of the last token.

  `length` tokens, uniform over 16 ids, except that the last one has exactly one
  earlier occurrence, at a uniform place, followed by a different id, which is
  the answer. Induction heads are Olsson et al. 2022 (arXiv 2209.11895); 16 ids
  are Gu and Dao 2023 (arXiv 2312.00752), who train with 256 tokens. Departure
  from them: any id may be the repeated one, not a special token.
  """

  vocab_size = 16
  num_outputs = 16
  chance = 1 / 16
  min_length = 3

  def sample(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> Examples:
    shape = batch_size, self.row_length(length)
    repeated_Bx1 = rng.integers(0, self.vocab_size, (batch_size, 1))
    shift_BxT = rng.integers(1, self.vocab_size, shape)
    tokens_BxT = (repeated_Bx1 + shift_BxT) % self.vocab_size
    first_Bx1 = rng.integers(0, length - 2, (batch_size, 1))
    answer_Bx1 = np.take_along_axis(tokens_BxT, first_Bx1 + 1, axis=1)
    np.put_along_axis(tokens_BxT, first_Bx1, repeated_Bx1, axis=1)
    tokens_BxT[:, -1:] = repeated_Bx1
    return with_answers(tokens_BxT, np.array([length - 1]), answer_Bx1)


class Mqar(RecallTask):
  """Multi-query associative recall: at each repeated key, its value.

  A row begins with P = max(1, length // 16) pairs (key, value), all different,
  followed by blanks. Each key replaces one of the blanks, at place
  2 P + 2 (g - 1) with g in 1..(length - 2 P) / 2 drawn without replacement and
  with probability proportional to g^(0.01 - 1): the gaps of repeated word pairs
  in text follow a power law. Answers are expected at these queries and are not
  fed back.

  Arora et al. 2023 (Zoology, arXiv 2312.04927). P is theirs for 64, 128 and 256
  tokens, continued; at 512 they have 64 pairs. An odd length gives a row of one
  token fewer. Departure: 512 ids instead of 8192, to fit small models: 256
  values, a blank and 255 keys, enough for 4095 tokens.
  """

  vocab_size = 512
  num_outputs = 256
  chance = 1 / 256
  min_length = 4

  BLANK = 256
  NUM_KEYS = 255
  POWER = 0.01
  TOKENS_PER_PAIR = 16

  def row_length(self, length: int) -> int:
    most = (self.NUM_KEYS + 1) * self.TOKENS_PER_PAIR - 1
    if length > most:
      raise ConfigError(
          f"length={length}: Mqar has keys for at most {most} tokens."
      )
    return super().row_length(length) // 2 * 2

  def sample(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> Examples:
    shape = batch_size, self.row_length(length)
    pairs = max(1, length // self.TOKENS_PER_PAIR)
    spaces = shape[1] // 2 - pairs

    def choose(count: int) -> np.ndarray:
      return rng.random((batch_size, count)).argsort(axis=1)[:, :pairs]

    values_BxP = choose(self.num_outputs)
    keys_BxP = self.BLANK + 1 + choose(self.NUM_KEYS)
    # Sorting exponential times samples without replacement, with probability
    # proportional to the rates.
    rates = np.arange(1, spaces + 1) ** (self.POWER - 1)
    times_BxG = rng.exponential(size=(batch_size, spaces)) / rates
    places_BxP = 2 * pairs + 2 * times_BxG.argsort(axis=1)[:, :pairs]

    tokens_BxT = np.full(shape, self.BLANK)
    tokens_BxT[:, : 2 * pairs] = _interleave(keys_BxP, values_BxP)
    np.put_along_axis(tokens_BxT, places_BxP, keys_BxP, axis=1)
    return with_answers(tokens_BxT, places_BxP, values_BxP)


def _interleave(even_BxP: np.ndarray, odd_BxP: np.ndarray | int) -> np.ndarray:
  """Returns [B, 2P], alternating columns of both arguments."""
  pairs = np.stack(np.broadcast_arrays(even_BxP, odd_BxP), axis=-1)
  return pairs.reshape(len(even_BxP), -1)


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        FlipFlop("flip_flop", ignored=0.8, variants=("flip_flop_sparse",)),
        FlipFlop("flip_flop_sparse", ignored=0.98),
        Copy("copy"),
        Induction("induction"),
        Mqar("mqar"),
    )
}
