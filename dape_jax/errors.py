"""The error that means "the input is wrong", as opposed to "the code is"."""

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
  """Bad input from outside: a setting, a flag, a file, a checkpoint.

  The message is one line that names the field and the fix. Scripts print it
  without a traceback and exit with status 2.
  """


def first_cause(error: BaseException) -> BaseException:
  """Returns what was raised first, below all that libraries wrapped it in."""
  while (cause := error.__cause__ or error.__context__) is not None:
    error = cause
  return error


def did_you_mean(name: str, valid: Iterable[str]) -> str:
  """Returns ' Did you mean "x"? Valid: a, b, x.' for an unknown `name`."""
  valid = sorted(valid)

  def likeness(candidate: str) -> float:
    # Names with a forgotten ending count as whole: "kerple" is "kerple_log".
    ends = (candidate, candidate[: len(name)])
    return max(difflib.SequenceMatcher(None, name, e).ratio() for e in ends)

  nearest = max(valid, key=likeness, default="")
  hint = f' Did you mean "{nearest}"?' if likeness(nearest) > 0.5 else ""
  return f"{hint} Valid: {', '.join(valid) or '(none)'}."
