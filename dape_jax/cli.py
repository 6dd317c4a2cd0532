"""How the scripts start and how they fail."""

import argparse
import ast
import os
import pathlib
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import flags

from dape_jax.errors import ConfigError, first_cause


class ArgumentParser(argparse.ArgumentParser):
  """Of commands that absl's flags do not suit; what is wrong is a ConfigError."""

  def error(self, message: str) -> NoReturn:
    raise ConfigError(f"{message} (see {self.prog} --help)")


def command() -> str:
  """Returns the command that runs now, as one would type it in the repository."""
  spec = sys.modules["__main__"].__spec__
  if spec is None:
    words = ["python", os.path.basename(sys.argv[0])]
  else:
    words = ["python", "-m", spec.name.removesuffix(".__main__")]
  return shlex.join([*words, *sys.argv[1:]])


def _one_line(error: BaseException) -> str:
  # A KeyError's str is the repr of its message, and ml_collections puts it into
  # messages of its own.
  message = str(error)
  while message[:1] in ("'", '"'):
    try:
      message = str(ast.literal_eval(message))
    except (SyntaxError, ValueError):
      break
  return " ".join(message.split())


def run(
    main: Callable[[list[str]], int | None], argv: Sequence[str] | None = None
) -> None:
  """Parses absl flags, calls `main(arguments left over)` and exits.

  Exit status: what `main` returns (None is 0); 2 with one line on stderr for bad
  input (a ConfigError or a flag that cannot be parsed); 130 after Ctrl-C; 141
  when standard output is a pipe that nobody reads.

  Args:
    main: gets argv as absl would give it, program name first.
    argv: default sys.argv.
  """
  argv = list(sys.argv if argv is None else argv)
  script = os.path.basename(argv[0])
  if any(arg in ("--help", "-h", "-help", "--helpfull") for arg in argv[1:]):
    module = sys.modules["__main__"]
    print(f"{(module.__doc__ or '').strip()}\n\nFlags:")
    everything = "--helpfull" in argv
    print(
        flags.FLAGS.get_help() if everything else flags.FLAGS.main_module_help()
    )
    sys.exit(0)
  try:
    # config_flags reports a misspelt setting as AttributeError or KeyError, and
    # runs the config file, which may refuse its argument or be broken.
    arguments = flags.FLAGS(argv)
  except Exception as e:
    cause = first_cause(e)  # ml_collections wraps it with a traceback
    if isinstance(cause, ConfigError):
      _fail(script, cause)
    frame = traceback.extract_tb(cause.__traceback__)[-1]
    if {"absl", "ml_collections"} & set(pathlib.Path(frame.filename).parts):
      _fail(script, e)  # A flag, not the config file's own code.
    where = f"{frame.filename}, line {frame.lineno}"
    message = f"--config: {type(cause).__name__}: {cause} ({where})"
    _fail(script, ConfigError(message))
  try:
    status = main(arguments)
    sys.stdout.flush()
    sys.exit(status)
  except BrokenPipeError:
    # Who reads the output, such as head, has enough of it. What is left would
    # fail once more at the end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(141)
  except ConfigError as e:
    _fail(script, e)
  except KeyboardInterrupt:
    print(f"{script}: interrupted", file=sys.stderr)
    sys.exit(130)


def _fail(script: str, error: BaseException) -> None:
  print(f"{script}: error: {_one_line(error)}", file=sys.stderr)
  sys.exit(2)
