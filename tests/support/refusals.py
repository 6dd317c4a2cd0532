"""How commands refuse bad input."""


def assert_refused(result, message):
  """Checks status 2 and a last line of stderr with the message.

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
