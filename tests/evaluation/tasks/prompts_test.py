"""Prompts have the requested length, depth and answer."""

import re

import numpy as np
import prompt_reader
import pytest

from dape_jax.data.tokenizers import ByteTokenizer
from dape_jax.errors import ConfigError
from dape_jax.evaluation.tasks import prompts

_TASKS = sorted(prompts.TASKS)
_BYTES = ByteTokenizer()
_FILLER = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go."
    " There and back again. "
)


class PairTokenizer:
  """Merges a space or digit with a following digit, greedily.

  So the end of a question and its answer share a token, and numbers have fewer
  tokens than digits.
  """

  def encode(self, text):
    pieces = re.findall(rb"[ 0-9][0-9]|.", text, re.DOTALL)
    return np.array([int.from_bytes(piece, "big") for piece in pieces])

  def decode(self, ids):
    return b"".join(int(i).to_bytes(2 if i > 255 else 1, "big") for i in ids)


def _prompt(task, length=700, depth=0.5, seed=0, tokenizer=_BYTES):
  return prompts.make_prompt(
      tokenizer, task, length, depth, np.random.default_rng(seed)
  )


def _split(prompt, tokenizer=_BYTES):
  cut = len(prompt.tokens) - prompt.num_answers
  decode = lambda ids: tokenizer.decode(ids).decode()
  return decode(prompt.tokens[:cut]), decode(prompt.tokens[cut:])


@pytest.mark.parametrize("depth", [None, 0, 0.3, 1])
@pytest.mark.parametrize("task", _TASKS)
def test_answer_is_found_by_a_perfect_reader(task, depth):
  sizes = {"passkey": 5, "needle_multi_value": 4 * 7 + 3 * 2}
  for seed in range(20):
    text, answer = _split(_prompt(task, depth=depth, seed=seed))
    assert answer == prompt_reader.answer(text)
    assert len(answer) == sizes.get(task, 7)


@pytest.mark.parametrize("tokenizer", [_BYTES, PairTokenizer()])
@pytest.mark.parametrize("task", _TASKS)
def test_prompts_have_exactly_the_length(task, tokenizer):
  for length in (400, 401, 512, 3000):
    prompt = _prompt(task, length, tokenizer=tokenizer)
    assert prompt.tokens.shape == (length + 1,)
    assert prompt.tokens.dtype == np.int32
    text, answer = _split(prompt, tokenizer)
    assert prompt_reader.answer(text) == answer.strip()


def test_token_across_the_end_of_the_question_is_part_of_the_answer():
  # " 1", "23", "45": the space is the question's last byte.
  prompt = _prompt("passkey", tokenizer=PairTokenizer())
  text, answer = _split(prompt, PairTokenizer())
  assert text.endswith("The pass key is") and prompt.num_answers == 3
  assert re.fullmatch(r" \d{5}", answer)


@pytest.mark.parametrize("depth", [0, 0.1, 0.5, 0.9, 1])
@pytest.mark.parametrize("task", _TASKS)
def test_needle_is_at_the_depth(task, depth):
  for seed in range(10):
    text, answer = _split(_prompt(task, 800, depth, seed))
    lines = text.split("\n")[:-1]
    fillers = [line for line in lines if not re.search(r"\d", line)]
    # The filler continues after a needle where it stopped before it.
    filler = "".join(fillers)
    assert (_FILLER * 9).startswith(filler)
    for number in answer.split(", "):
      place = next(i for i, line in enumerate(lines) if number in line)
      before = sum(len(line) for line in lines[:place] if line in fillers)
      assert abs(before - depth * len(filler)) <= 1
    numbers = re.findall(r"\d{5,}", text)
    if depth == 0:
      assert numbers[0] in answer
    if depth == 1:
      assert numbers[-1] in answer


def test_samples_are_the_same_at_all_lengths_and_depths():
  answers = {
      _split(_prompt("needle_multi_key", length, depth))[1]
      for length in (400, 1000)
      for depth in (0, 0.5, 1)
  }
  assert len(answers) == 1
  assert _split(_prompt("needle_multi_key", seed=1))[1] not in answers


def test_depth_none_spreads_needles():
  shares = []
  for seed in range(300):
    text, answer = _split(_prompt("passkey", depth=None, seed=seed))
    shares.append(text.index(answer) / len(text))
  histogram = np.histogram(shares, bins=4, range=(0, 0.94))[0] / 300
  np.testing.assert_allclose(histogram, 0.25, atol=0.09)


@pytest.mark.parametrize("task", _TASKS)
def test_minimum_length_is_reported(task):
  with pytest.raises(ConfigError, match="too short") as error:
    _prompt(task, 20)
  least = int(re.search(r"takes (\d+) tokens", str(error.value))[1])
  assert len(_prompt(task, least).tokens) == least + 1
  with pytest.raises(ConfigError, match="too short"):
    _prompt(task, least - 1)


def test_bad_settings_are_rejected():
  with pytest.raises(ConfigError, match='Did you mean "passkey"'):
    _prompt("paskey")
  with pytest.raises(ConfigError, match=r"1\.5 is not in 0\.\.1"):
    _prompt("passkey", depth=1.5)
