"""Inputs of the Chomsky-hierarchy tasks as readable strings."""

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


def texts(name, tokens):
  """Returns each row of token ids of the task `name` as a string."""
  characters = ALPHABETS.get(name, "01#")
  return ["".join(characters[token] for token in row) for row in tokens]
