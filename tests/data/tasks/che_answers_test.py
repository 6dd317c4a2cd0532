"""Answers of the Chomsky-hierarchy tasks against oracles on strings."""

import itertools
import math
import re

import numpy as np
import pytest
from che_texts import texts

from dape_jax.data import tasks

TO_STACK = {"0": "0", "1": "1", "a": "0", "b": "1"}


def _walk(text):
  place = 0
  for step in text:
    place = {"<": [4, 0, 1, 2, 3], ".": range(5), ">": [1, 2, 3, 4, 0]}[step][
        place
    ]
  return str(place)


def _stack(text):
  stack = []
  for action in text:
    if action != "#":
      stack.append(TO_STACK[action])
    elif stack:
      del stack[-1]
  return ("".join(reversed(stack)) + "#").ljust(len(text) + 1, "0")


def _solve(text):
  if len(text) < 3:
    return "0"
  left, right = text.split("=")
  (digit,) = [
      d for d in "01234" if eval(left.replace("x", d)) % 5 == int(right)
  ]
  return digit


def _missing(text):
  if len(text) == 1:
    return "1"
  text = text.rstrip("~")
  half = len(text) // 2
  for bit in "01":
    filled = text.replace("#", bit)
    if filled[:half] == filled[half:]:
      return bit


def _combined(text, combine, size):
  numbers = [int(number[::-1], 2) for number in text.split("#")]
  value = combine(numbers) if len(numbers) == 2 else numbers[0]
  return (f"{value:b}"[::-1] + "#").ljust(size, "0")


def _product(text):
  if len(text) < 3:
    return "0" * (len(text) - 1) + "#"
  return _combined(text, math.prod, len(text))


def _root(text):
  number, root = int(text, 2), 0
  for place in reversed(range(len(text))):
    if (root + 2**place) ** 2 <= number:
      root += 2**place
  return f"{root:0{(len(text) + 1) // 2}b}"


ANSWERS = {
    "even_pairs": lambda text: str(len(re.findall("0(?=1)|1(?=0)", text)) % 2),
    "modular_arithmetic": lambda text: str(eval(text) % 5),
    "parity_check": lambda text: "01"[text.count("1") & 1],
    "cycle_navigation": _walk,
    "stack_manipulation": _stack,
    "reverse_string": lambda text: "".join(reversed(text)),
    "modular_arithmetic_brackets": lambda text: str(eval(text) % 5),
    "solve_equation": _solve,
    "duplicate_string": lambda text: 2 * text,
    "missing_duplicate_string": _missing,
    "odds_first": lambda text: text[1::2] + text[0::2],
    "binary_addition": lambda text: _combined(text, sum, len(text) + 1),
    "binary_multiplication": _product,
    "compute_sqrt": _root,
    "bucket_sort": lambda text: "".join(sorted(text)),
}


def _check(name, inputs, outputs):
  answers = [ANSWERS[name](text) for text in texts(name, inputs)]
  digits = "01#" if tasks.make(name).num_outputs == 3 else "01234"
  assert answers == ["".join(digits[token] for token in row) for row in outputs]


@pytest.mark.parametrize(
    "name",
    [
        "even_pairs",
        "parity_check",
        "cycle_navigation",
        "reverse_string",
        "duplicate_string",
        "odds_first",
        "bucket_sort",
    ],
)
def test_answers_to_all_short_strings(name):
  task = tasks.make(name)
  for length in range(1, 7 if task.num_inputs < 5 else 6):
    inputs = list(itertools.product(range(task.num_inputs), repeat=length))
    _check(name, np.array(inputs), task.outputs_of(np.array(inputs)))


@pytest.mark.parametrize("name", tasks.CHE_TASKS)
def test_answers_to_random_problems(name):
  rng = np.random.default_rng(0)
  task = tasks.make(name)
  for length in range(1, 41):
    size = 400 if length < 7 else 40
    _check(name, *task.problems(rng, length, size))
  for length in (499, 500):
    _check(name, *task.problems(rng, length, 8))


@pytest.mark.parametrize("name", tasks.CHE_TASKS)
def test_best_constant_answer_scores_chance(name):
  rng = np.random.default_rng(0)
  task = tasks.make(name)
  shares = []
  for length in np.linspace(41, 500, 16).astype(int):
    examples = task.sample(
        rng, length, 1000 if task.output_length(2) == 1 else 200
    )
    targets = examples.targets[examples.scored]
    counts = np.bincount(targets, minlength=task.num_outputs)
    shares.append(counts / counts.sum())
  assert np.mean(shares, axis=0).max() == pytest.approx(task.chance, abs=0.01)


def test_chance_of_bracketed_expressions():
  digits = np.arange(5)
  operations = [digits[:, None] + digits, digits[:, None] - digits]
  operations.append(digits[:, None] * digits)
  shares = np.full((501, 5), 0.2)
  for n in range(5, 501):
    joint = shares[1 : n - 3].T @ shares[n - 4 : 0 : -1] / (n - 4)
    shares[n] = [
        np.mean([joint[op % 5 == d].sum() for op in operations]) for d in digits
    ]
  assert shares[41:].mean(axis=0).max() == pytest.approx(
      tasks.make("modular_arithmetic_brackets").chance, abs=5e-4
  )


def test_bucket_sort_chance_by_place():
  rng = np.random.default_rng(0)
  task = tasks.make("bucket_sort")
  right = []
  for length in range(41, 501):
    _, outputs = task.problems(rng, length, 32)
    right.append(np.mean(outputs == 5 * np.arange(length) // length))
  assert np.mean(right) == pytest.approx(task.chance_by_place, abs=0.005)


def test_terminated_outputs_are_scored_to_the_terminator():
  examples = tasks.make("stack_manipulation").sample(
      np.random.default_rng(0), 6, 50
  )
  np.testing.assert_array_equal(
      examples.trained, np.broadcast_to(np.arange(13) >= 6, (50, 13))
  )
  for targets, scored in zip(examples.targets, examples.scored):
    end = targets.tolist().index(2)
    assert np.flatnonzero(scored).tolist() == list(range(6, end + 1))
    assert not targets[end + 1 :].any()


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        ("stack_manipulation", [0, 1, 1, 0, 4, 2, 2], [1, 1, 0, 2, 0, 0, 0, 0]),
        ("stack_manipulation", [1, 1, 0, 2, 2, 2], [2, 0, 0, 0, 0, 0, 0]),
        ("binary_addition", [0, 0, 1, 2, 0, 1], [0, 1, 1, 2, 0, 0, 0]),
        ("binary_addition", [0, 0], [0, 2, 0]),
        ("binary_multiplication", [0, 1, 2, 1, 1], [0, 1, 1, 2, 0]),
        ("binary_multiplication", [0], [2]),
        ("missing_duplicate_string", [0, 1, 1, 0, 0, 2, 1, 0, 3], [1]),
        ("modular_arithmetic", [0, 7, 1, 5, 4, 7, 3, 6, 2], [0]),
        ("odds_first", [0, 0, 1, 1, 0, 1, 0, 1], [0, 1, 1, 1, 0, 1, 0, 0]),
        ("compute_sqrt", [1, 0, 0, 1, 0, 1], [1, 1, 0]),
    ],
)
def test_hand_computed_answers(name, inputs, outputs):
  answer = tasks.make(name).outputs_of(np.array([inputs]))
  assert answer.tolist() == [outputs]
