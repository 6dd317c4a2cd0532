"""The error that means "the input is wrong", as opposed to "the code is"."""

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
  """Bad input from outside: a setting, a flag, a file, a checkpoint.

  The message is one line that names the field and the fix. Scripts print it
  without a traceback and exit with status 2.
  """


def did_you_mean(name: str, valid: Iterable[str]) -> str:
  """Returns ' Did you mean "x"? Valid: a, b, x.' for an unknown `name`."""
  valid = sorted(valid)
  close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
  hint = f' Did you mean "{close[0]}"?' if close else ""
  return f"{hint} Valid: {', '.join(valid) or '(none)'}."
