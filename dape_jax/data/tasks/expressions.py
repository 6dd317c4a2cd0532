"""Random arithmetic expressions with brackets, modulo 5, and their values."""

import numpy as np

MODULUS = 5
PLUS, MINUS, TIMES = range(MODULUS, MODULUS + 3)


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
  """Writes an expression into each span of `tokens` and returns their values.

  All spans of one depth are written at once; a call's depth is the brackets'.
  """
  opening, closing = PLUS + num_operators, PLUS + num_operators + 1
  bracketed = lengths > 2
  tokens[starts[bracketed]] = opening
  tokens[(starts + lengths - 1)[bracketed]] = closing

  # In d, -d, (d) and (-d) the digit stands at half of the length.
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
