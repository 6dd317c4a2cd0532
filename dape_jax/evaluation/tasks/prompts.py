"""Retrieval prompts: numbers hidden in filler, at any length and depth.

Filler, needles and question are tokenized separately, so that a prompt has
exactly the requested length and a needle exactly the requested depth, whatever
the tokenizer. The models are not instruction-tuned, so prompts do not begin
with a description of the task; this also leaves room at short lengths.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from dape_jax.errors import ConfigError, did_you_mean

# From Mohtashami and Jaggi 2023 (arXiv 2305.16300); also the "noise" of RULER.
_FILLER = (
    b"The grass is green. The sky is blue. The sun is yellow. Here we go. There"
    b" and back again. "
)

# Equally long, so that prompts of one task have the same number of bytes.
_KEYS = (
    *("apple", "brick", "cloud", "dance", "eagle", "flame", "grape", "horse"),
    *("ivory", "jelly", "knife", "lemon", "mango", "night", "ocean", "piano"),
)


@dataclasses.dataclass(frozen=True)
class RetrievalTask:
  """A retrieval task: the needle, the question and their numbers.

  Attributes:
    needle: sentence with {key} and {number}.
    question: text with {key} that the answer continues.
    num_digits: digits of a number; the first is not 0.
    keys: number of different keys; the question asks for one.
    values: needles per key; the answer is all numbers of the key, in the order
      of the text, joined by ", ".
  """

  needle: str
  question: str
  num_digits: int
  keys: int = 1
  values: int = 1


_NEEDLE = "One of the special magic numbers for {key} is: {number}."
_QUESTION = (
    "What is the special magic number for {key} mentioned in the text? The"
    " special magic number for {key} mentioned in the text is: "
)
_QUESTIONS = (
    "What are all the special magic numbers for {key} mentioned in the text?"
    " The special magic numbers for {key} mentioned in the text are: "
)

# passkey: Mohtashami and Jaggi 2023 (Landmark Attention, arXiv 2305.16300);
# departure: always five digits. Needles: niah_single, niah_multikey and
# niah_multivalue of Hsieh et al. 2024 (RULER, arXiv 2404.06654), 7 digits and
# four keys or values; departures: shorter questions, fewer different keys, and
# the answer lists the numbers of a key in the order of the text.
TASKS = {
    "passkey": RetrievalTask(
        "The pass key is {number}. Remember it. {number} is the pass key.",
        "What is the pass key? The pass key is ",
        num_digits=5,
    ),
    "needle_single": RetrievalTask(_NEEDLE, _QUESTION, num_digits=7),
    "needle_multi_key": RetrievalTask(_NEEDLE, _QUESTION, 7, keys=4),
    "needle_multi_value": RetrievalTask(_NEEDLE, _QUESTIONS, 7, values=4),
}


class Prompt(NamedTuple):
  """Tokens with an answer at their end.

  Attributes:
    tokens: int32 [length + 1]: `length` inputs and the last target.
    num_answers: number of final tokens that form the answer.
  """

  tokens: np.ndarray
  num_answers: int


def make_prompt(
    tokenizer: Any,
    task: str,
    length: int,
    depth: float | None,
    rng: np.random.Generator,
) -> Prompt:
  """Returns a prompt with needles, a question and its answer.

  Question and answer are tokenized together, because a tokenizer may join the
  question's last space with the first digit. The answer is whatever follows the
  longest common prefix with the tokens of the question alone.

  Args:
    tokenizer: `tokenizer.encode(bytes)` returns token ids [n].
    task: a name in `TASKS`.
    length: number of inputs, including the answer without its last token.
    depth: fraction of the filler before the needle in question, 0 to 1; several
      such needles are adjacent. None places each needle uniformly at random.
    rng: source of keys, numbers and places; the same state gives the same ones
      at every length and depth.

  Raises:
    ConfigError: unknown task, depth not in 0..1, or length too small.
  """
  if task not in TASKS:
    raise ConfigError(
        f"--retrieval={task!r} is unknown.{did_you_mean(task, TASKS)}"
    )
  if depth is not None and not 0 <= depth <= 1:
    raise ConfigError(f"--depths: {depth} is not in 0..1.")
  form = TASKS[task]
  num_needles = form.keys * form.values
  keys = rng.permutation(_KEYS)[: form.keys]
  numbers = rng.integers(
      10 ** (form.num_digits - 1), 10**form.num_digits, num_needles
  )
  depths = rng.random(num_needles)
  # The question asks for the first needles.
  if depth is not None:
    depths[: form.values] = depth
  order = depths.argsort(kind="stable")

  def encode(text: str) -> np.ndarray:
    return np.asarray(tokenizer.encode(text.encode()), np.int32)

  needles = [
      encode(
          "\n"
          + form.needle.format(key=keys[i // form.values], number=numbers[i])
          + "\n"
      )
      for i in order
  ]
  question = "\n" + form.question.format(key=keys[0])
  answer = ", ".join(str(numbers[i]) for i in order if i < form.values)
  end = encode(question + answer)
  used = sum(map(len, needles)) + len(end)
  num_fillers = length + 1 - used
  if num_fillers < 0:
    raise ConfigError(
        f"--lengths: {length} is too short for {task}, which takes"
        f" {used - 1} tokens without any filler."
    )
  filler = np.resize(encode(_FILLER.decode()), num_fillers)
  pieces, done = [], 0
  for i, needle in zip(order, needles, strict=True):
    cut = min(int(depths[i] * (num_fillers + 1)), num_fillers)
    pieces += [filler[done:cut], needle]
    done = cut
  asked = encode(question)[: len(end)]
  prefix = int(np.cumprod(asked == end[: len(asked)]).sum())
  return Prompt(
      np.concatenate([*pieces, filler[done:], end]), len(end) - prefix
  )
