"""The deterministic context-free tasks of the Chomsky-hierarchy evaluation.

For their sources, see `regular`.
"""

import numpy as np

from dape_jax.data.tasks.regular import MODULUS
from dape_jax.data.tasks.task import (
    TransductionTask,
    bit_string_task,
    terminated,
)

PLUS, MINUS = MODULUS, MODULUS + 1


def stacks_and_actions(
    rng: np.random.Generator, length: int, batch_size: int
) -> np.ndarray:
  """Returns the inputs of `stack_manipulation`."""
  shape = (batch_size, length)
  if length == 1:
    return rng.integers(2, size=shape)
  sizes_B = rng.integers(1, length, size=batch_size)
  in_stack_BxN = np.arange(length)[None] < sizes_B[:, None]
  actions_BxN = rng.integers(2, 5, size=shape)
  return np.where(in_stack_BxN, rng.integers(2, size=shape), actions_BxN)


def stack_manipulation(inputs_BxN: np.ndarray) -> np.ndarray:
  """Stack Manipulation: the contents of a stack after pushes and pops.

  The input is a stack of s random bits, bottom first, with s uniform in 1..n-1,
  and then n - s uniform actions: 2 pops, 3 pushes 0 and 4 pushes 1; popping
  an empty stack does nothing. A single token is a stack. The n + 1 outputs are
  the final stack from its top, the terminator 2, then zeros; the accuracy
  counts places up to and including the terminator.

  Chance: bits are fair, so L / 2 of L + 1 places for a stack of L. Measured
  with 2,048 rows at each length of 41..500, all places of a length together.
  """
  batch_size, length = inputs_BxN.shape
  rows_B = np.arange(batch_size)
  stacks_BxM = np.zeros((batch_size, length + 1), int)
  sizes_B = np.zeros(batch_size, int)
  # Bits of the initial stack are pushed like those of actions.
  for token_B in np.ascontiguousarray(inputs_BxN.T):
    # A pop also writes, but above the top, where nothing is read.
    stacks_BxM[rows_B, sizes_B] = token_B % 3
    sizes_B = np.where(token_B == 2, np.maximum(sizes_B - 1, 0), sizes_B + 1)
  from_top_BxM = sizes_B[:, None] - 1 - np.arange(length + 1)[None]
  bits_BxM = np.take_along_axis(stacks_BxM, np.maximum(from_top_BxM, 0), axis=1)
  return terminated(bits_BxM, sizes_B)


def reverse_string(inputs_BxN: np.ndarray) -> np.ndarray:
  """Reverse String: a bit string in reverse.

  y_i = x_{n+1-i}, n outputs.

  Chance: bits are fair.
  """
  return inputs_BxN[:, ::-1]


def random_expressions(
    rng: np.random.Generator, length: int, batch_size: int, num_operators: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns random expressions of exactly `length` tokens, and their values.

  With d a uniform digit 0..4, an expression E_n of length n is

    E_1 = d, E_2 = -d, E_3 = (d), E_4 = (-d), else E_n = (E_l o E_{n-3-l})

  with l uniform in 1..n-4 and o a uniform operator (Deletang et al. 2023, arXiv
  2207.02098).

  Args:
    rng: source of randomness.
    length: n, at least 1.
    batch_size: B.
    num_operators: 2 for + and -, 3 for * too.

  Returns:
    Ids [B, n]: digits 0..4, then + and - (and *), then the brackets. Values
    modulo 5, integers [B].
  """
  tokens_BxN = np.empty((batch_size, length), int)
  starts = np.arange(batch_size) * length
  lengths = np.full(batch_size, length)
  values_B = _fill(rng, tokens_BxN.reshape(-1), starts, lengths, num_operators)
  return tokens_BxN, values_B


def _fill(
    rng: np.random.Generator,
    tokens: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    num_operators: int,
) -> np.ndarray:
  """Writes an expression into each span of `tokens`; returns the values.

  Writes all spans of one bracket depth at once and recurses to the next depth.
  """
  opening, closing = PLUS + num_operators, PLUS + num_operators + 1
  bracketed = lengths > 2
  tokens[starts[bracketed]] = opening
  tokens[(starts + lengths - 1)[bracketed]] = closing

  # In d, -d, (d) and (-d) the digit is at index length // 2.
  values = rng.integers(MODULUS, size=len(starts))
  simple = lengths < 5
  digits = (starts + lengths // 2)[simple]
  tokens[digits] = values[simple]
  negated = simple & (lengths % 2 == 0)
  tokens[(starts + lengths // 2 - 1)[negated]] = MINUS
  values[negated] = -values[negated] % MODULUS

  (compound,) = np.nonzero(~simple)
  if not compound.size:
    return values
  starts, lengths = starts[compound], lengths[compound]
  left_lengths = rng.integers(1, lengths - 3)
  middles = starts + 1 + left_lengths
  operators = rng.integers(PLUS, PLUS + num_operators, size=len(starts))
  tokens[middles] = operators
  left, right = np.split(
      _fill(
          rng,
          tokens,
          np.concatenate([starts + 1, middles + 1]),
          np.concatenate([left_lengths, lengths - 3 - left_lengths]),
          num_operators,
      ),
      2,
  )
  results = np.select(
      [operators == PLUS, operators == MINUS],
      [left + right, left - right],
      left * right,
  )
  values[compound] = results % MODULUS
  return values


class ModularArithmeticBrackets(TransductionTask):
  """Modular Arithmetic: the value modulo 5 of an expression with brackets.

  Expressions come from `random_expressions` with + 5, - 6, * 7,
  ( 8 and ) 9; one output token. Id 10 is reserved for equations in the
  released code and never occurs.

  Chance: the probability of 0, the most likely value, by the recursion over
  lengths, mean over lengths 41..500.
  """

  def problems(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> tuple[np.ndarray, np.ndarray]:
    tokens_BxN, values_B = random_expressions(rng, length, batch_size, 3)
    return tokens_BxN, values_B[:, None]


class SolveEquation(TransductionTask):
  """Solve Equation: the value of x in an equation modulo 5.

  An expression of `random_expressions`, of length n - 2 and without
  *, has one digit replaced by x: the first at or cyclically after a uniform
  place. "=" and the expression's value follow. Ids are + 5, - 6, ( 7, ) 8, x 9
  and = 10; the one output is the digit, which is unique. Problems with n below
  3 are zeros.

  Chance: digits are uniform, and the choice of digit does not depend on their
  values.
  """

  def problems(
      self, rng: np.random.Generator, length: int, batch_size: int
  ) -> tuple[np.ndarray, np.ndarray]:
    if length < 3:
      zeros_BxN = np.zeros((batch_size, length), int)
      return zeros_BxN, np.zeros((batch_size, 1), int)
    unknown, equals = MODULUS + 4, MODULUS + 5
    size = length - 2
    tokens_BxN, values_B = random_expressions(rng, size, batch_size, 2)
    places_B = rng.integers(size, size=batch_size)
    steps_BxN = (np.arange(size)[None] - places_B[:, None]) % size
    steps_BxN[tokens_BxN >= MODULUS] = size
    at_Bx1 = np.argmin(steps_BxN, axis=1)[:, None]
    digits_Bx1 = np.take_along_axis(tokens_BxN, at_Bx1, axis=1)
    np.put_along_axis(tokens_BxN, at_Bx1, unknown, axis=1)
    equals_Bx1 = np.full((batch_size, 1), equals)
    inputs = [tokens_BxN, equals_Bx1, values_B[:, None]]
    return np.concatenate(inputs, axis=1), digits_Bx1


TASKS = {
    "stack_manipulation": TransductionTask(
        num_inputs=5,
        num_outputs=3,
        chance=0.496,
        inputs=stacks_and_actions,
        outputs_of=stack_manipulation,
        output_length=lambda n: n + 1,
        is_terminated=True,
    ),
    "reverse_string": bit_string_task(
        outputs_of=reverse_string, output_length=lambda n: n
    ),
    "modular_arithmetic_brackets": ModularArithmeticBrackets(
        num_inputs=MODULUS + 6, num_outputs=MODULUS, chance=0.31
    ),
    "solve_equation": SolveEquation(
        num_inputs=MODULUS + 6, num_outputs=MODULUS, chance=0.2
    ),
}
