"""Checks how commands reject invalid input."""


def assert_refused(result, message):
  """Checks exit status 2 and the message in the last line of stderr.

  Args:
    result: exit status, stdout and stderr.
    message: part of the line.
  """
  status, out, err = result
  assert status == 2 and not out
  last = err.splitlines()[-1]
  assert last.startswith("tasks.py: error: ")
  assert message in last
  assert "Traceback" not in err
