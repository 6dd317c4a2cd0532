"""The error for invalid input, and "Did you mean" hints."""

import difflib
from collections.abc import Iterable

_LISTED = 20


class ConfigError(ValueError):
  """Raised for an invalid setting, flag, file or checkpoint.

  The message is one line that names the field and the fix. Scripts print it
  without a traceback and exit with status 2.
  """


def first_cause(error: BaseException) -> BaseException:
  """Returns the innermost cause of an exception that libraries have wrapped."""
  while (cause := error.__cause__ or error.__context__) is not None:
    error = cause
  return error


def did_you_mean(name: str, valid: Iterable[str]) -> str:
  """Returns ' Did you mean "x"? Valid: a, b, x.' for an unknown `name`.

  Lists the 20 closest names if there are more.
  """
  valid = sorted(valid)

  def likeness(candidate: str) -> tuple[float, float]:
    # A prefix matches as well as the full name ("kerple" for "kerple_log");
    # ties go to the shortest full name.
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
