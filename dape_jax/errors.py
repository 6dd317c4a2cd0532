"""The error that means "the input is wrong", as opposed to "the code is"."""

import difflib
from collections.abc import Iterable

_LISTED = 20


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
  """Returns ' Did you mean "x"? Valid: a, b, x.' for an unknown `name`.

  Of many valid names the nearest are listed.
  """
  valid = sorted(valid)

  def likeness(candidate: str) -> tuple[float, float]:
    # Names with a forgotten ending count as whole: "kerple" is "kerple_log"; of
    # several such the shortest.
    ratio = lambda end: difflib.SequenceMatcher(None, name, end).ratio()
    whole = ratio(candidate)
    return max(whole, ratio(candidate[: len(name)])), whole

  ordered = sorted(valid, key=likeness, reverse=True)
  hint = ""
  if ordered and likeness(ordered[0])[0] > 0.5:
    hint = f' Did you mean "{ordered[0]}"?'
  if len(valid) > _LISTED:
    more = f" and {len(valid) - _LISTED} more"
    return f"{hint} Valid: {', '.join(sorted(ordered[:_LISTED]))}{more}."
  return f"{hint} Valid: {', '.join(valid) or '(none)'}."
