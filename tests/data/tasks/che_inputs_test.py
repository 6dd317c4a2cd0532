"""Distribution of the inputs of the Chomsky-hierarchy tasks."""

import collections
import fractions
import itertools

import numpy as np
import pytest
from che_texts import texts

from dape_jax.data import tasks

# Lengths up to which a quick sample covers all inputs, if not 7.
LONGEST = {"bucket_sort": 5, "modular_arithmetic": 6, "solve_equation": 8}


def _uniform(strings):
  strings = list(strings)
  return {text: fractions.Fraction(1, len(strings)) for text in strings}


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
  return _uniform(texts(name, itertools.product(range(width), repeat=n)))


@pytest.mark.parametrize(
    ("name", "length"),
    [
        (name, length)
        for name in tasks.CHE_TASKS
        for length in range(1, 1 + LONGEST.get(name, 7))
    ],
)
def test_short_inputs_have_the_defined_frequencies(name, length):
  expected = _inputs(name, length)
  assert sum(expected.values()) == 1
  size = 20 * int(1 / min(expected.values()))
  task = tasks.make(name)
  inputs, _ = task.problems(np.random.default_rng(length), length, size)
  assert inputs.shape == (size, task.input_length(length))
  seen = collections.Counter(texts(name, inputs))
  assert set(seen) == set(expected)
  chi_square = sum(
      (seen[text] - size * p) ** 2 / (size * p) for text, p in expected.items()
  )
  freedom = len(expected) - 1
  assert chi_square <= freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("length", [1, 2, 3, 18, 500])
@pytest.mark.parametrize("name", tasks.CHE_TASKS)
def test_rows_are_the_input_and_placeholders_for_the_output(name, length):
  task = tasks.make(name)
  inputs, outputs = task.problems(np.random.default_rng(0), length, 16)
  examples = task.sample(np.random.default_rng(0), length, 16)
  start = task.input_length(length)
  np.testing.assert_array_equal(examples.tokens[:, :start], inputs)
  assert (examples.tokens[:, start:] == task.num_inputs).all()
  np.testing.assert_array_equal(examples.targets[:, start:], outputs)
  assert outputs.shape == (16, task.output_length(length))
  assert examples.trained[:, start:].all()
  assert not examples.trained[:, :start].any()
  assert task.vocab_size == task.num_inputs + 1


def test_long_numbers_are_uniform_in_length_and_value():
  task = tasks.make("binary_addition")
  inputs, _ = task.problems(np.random.default_rng(0), 500, 4000)
  sizes = np.argmax(inputs == 2, axis=1)
  assert (np.sum(inputs == 2, axis=1) == 1).all()
  assert sizes.min() < 10
  assert sizes.max() > 490
  assert sizes.mean() == pytest.approx(249.5, abs=4 * 144 / 4000**0.5)
  # The digits of a uniform number are fair, including the highest.
  assert inputs[:, -1].mean() == pytest.approx(0.5, abs=0.04)
  assert inputs[inputs != 2].mean() == pytest.approx(0.5, abs=0.002)
