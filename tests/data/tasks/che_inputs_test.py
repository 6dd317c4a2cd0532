"""Inputs of the Chomsky-hierarchy tasks: which there are, and how often."""

import collections
import fractions
import itertools

import numpy as np
import pytest

from dape_jax.data import tasks

# Token ids as characters; "#" separates numbers and pops the stack.
ALPHABETS = {
    "modular_arithmetic": "01234+-*",
    "cycle_navigation": "<.>",
    "stack_manipulation": "01#ab",
    "modular_arithmetic_brackets": "01234+-*()",
    "solve_equation": "01234+-()x=",
    "missing_duplicate_string": "01#~",
    "bucket_sort": "01234",
}

# Of these tasks a quick sample reaches all inputs up to other lengths than 7.
LONGEST = {"bucket_sort": 5, "modular_arithmetic": 6, "solve_equation": 8}


def _texts(name, tokens):
  characters = ALPHABETS.get(name, "01#")
  return ["".join(characters[token] for token in row) for row in tokens]


def _uniform(texts):
  texts = list(texts)
  return {text: fractions.Fraction(1, len(texts)) for text in texts}


def _mixed(parts):
  """Mixes distributions with equal weights."""
  mixed = collections.Counter()
  for part in parts:
    for text, probability in part.items():
      mixed[text] += probability / len(parts)
  return mixed


def _strings(characters, length):
  return ["".join(s) for s in itertools.product(characters, repeat=length)]


def _expressions(length, operators):
  if length < 5:
    form = ("", "{}", "-{}", "({})", "(-{})")[length]
    return _uniform(form.format(digit) for digit in "01234")
  split = []
  for left_length in range(1, length - 3):
    left = _expressions(left_length, operators)
    right = _expressions(length - 3 - left_length, operators)
    joint = itertools.product(left.items(), right.items(), operators)
    split.append(
        {
            f"({a}{op}{b})": p * q / len(operators)
            for (a, p), (b, q), op in joint
        }
    )
  return _mixed(split)


def _equation(expression, place):
  while not expression[place].isdigit():
    place = (place + 1) % len(expression)
  value = eval(expression) % 5
  return f"{expression[:place]}x{expression[place + 1 :]}={value}"


def _numbers(length):
  return _uniform(s for s in _strings("01", length) if "1" in s)


def _pair(name, n):
  if n < 3:
    return _uniform(s for s in _strings("01", n) if "0" in s)
  return _mixed(
      [
          _uniform(
              map("#".join, itertools.product(_numbers(k), _numbers(n - 1 - k)))
          )
          for k in range(1, n - 1)
      ]
  )


def _inputs(name, n):
  """Returns the probability of each input of length n."""
  if name == "modular_arithmetic":
    parts = ["01234", "+-*"] * n
    parts = parts[: n if n % 2 else n - 1]
    return _uniform(map("".join, itertools.product(*parts)))
  if name == "stack_manipulation":
    return _mixed(
        [
            _uniform(
                s + a for s in _strings("01", k) for a in _strings("#ab", n - k)
            )
            for k in range(1, max(n, 2))
        ]
    )
  if name == "modular_arithmetic_brackets":
    return _expressions(n, "+-*")
  if name == "solve_equation" and n < 3:
    return _uniform(["0" * n])
  if name == "solve_equation":
    expressions = _expressions(n - 2, "+-").items()
    equations = collections.Counter()
    for (text, p), place in itertools.product(expressions, range(n - 2)):
      equations[_equation(text, place)] += p / (n - 2)
    return equations
  if name == "missing_duplicate_string":
    if n == 1:
      return _uniform(["1"])
    doubled = [2 * s for s in _strings("01", n // 2)]
    cut = lambda s, i: f"{s[:i]}#{s[i + 1 :]}{'~' * (n % 2)}"
    return _mixed(
        [_uniform([cut(s, i)]) for s in doubled for i in range(len(s))]
    )
  if name in ("binary_addition", "binary_multiplication"):
    return _pair(name, n)
  if name == "compute_sqrt":
    return _numbers(n)
  width = {"cycle_navigation": 3, "bucket_sort": 5}.get(name, 2)
  return _uniform(_texts(name, itertools.product(range(width), repeat=n)))


@pytest.mark.parametrize(
    ("name", "length"),
    [
        (name, length)
        for name in tasks.CHE_TASKS
        for length in range(1, 1 + LONGEST.get(name, 7))
    ],
)
def test_short_inputs_are_as_frequent_as_defined(name, length):
  expected = _inputs(name, length)
  assert sum(expected.values()) == 1
  size = 20 * int(1 / min(expected.values()))
  task = tasks.make(name)
  inputs, _ = task.problems(np.random.default_rng(length), length, size)
  assert inputs.shape == (size, task.input_length(length))
  seen = collections.Counter(_texts(name, inputs))
  assert set(seen) == set(expected)
  chi_square = sum(
      (seen[text] - size * p) ** 2 / (size * p) for text, p in expected.items()
  )
  freedom = len(expected) - 1
  assert chi_square <= freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("length", [8, 9, 40, 500])
@pytest.mark.parametrize("name", tasks.CHE_TASKS)
def test_rows_have_the_shapes_and_ids_stated(name, length):
  task = tasks.make(name)
  examples = task.sample(np.random.default_rng(0), length, 64)
  inputs, outputs = np.split(examples.tokens, [task.input_length(length)], 1)
  assert inputs.min() >= 0
  assert inputs.max() < task.num_inputs
  assert outputs.shape == (64, task.output_length(length))
  assert (outputs == task.num_inputs).all()
  assert task.vocab_size == task.num_inputs + 1
  targets = examples.targets[examples.trained]
  assert set(np.unique(targets)) <= set(range(task.num_outputs))
  assert examples.tokens.shape == (64, task.row_length(length))


@pytest.mark.parametrize("length", [1, 2, 3, 20])
@pytest.mark.parametrize("name", tasks.CHE_TASKS)
def test_a_seed_decides_the_problems(name, length):
  sample = lambda seed: tasks.make(name).sample(
      np.random.default_rng(seed), length, 32
  )
  first, again, other = sample(0), sample(0), sample(1)
  for field in ("tokens", "targets", "trained", "scored"):
    np.testing.assert_array_equal(getattr(first, field), getattr(again, field))
  assert length < 20 or (first.tokens != other.tokens).any()


def test_long_numbers_are_uniform_in_length_and_value():
  task = tasks.make("binary_addition")
  inputs, _ = task.problems(np.random.default_rng(0), 500, 4000)
  sizes = np.argmax(inputs == 2, axis=1)
  assert (np.sum(inputs == 2, axis=1) == 1).all()
  assert sizes.min() < 10
  assert sizes.max() > 490
  assert sizes.mean() == pytest.approx(249.5, abs=4 * 144 / 4000**0.5)
  # The digits of a number that is uniform, its highest included, are fair.
  assert inputs[:, -1].mean() == pytest.approx(0.5, abs=0.04)
  assert inputs[inputs != 2].mean() == pytest.approx(0.5, abs=0.002)
