"""Command-line flags, start-up and error handling of the commands."""

import argparse
import ast
import difflib
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import NamedTuple, NoReturn

from absl import flags

from dape_jax.errors import ConfigError

flags.disclaim_key_flags()  # They belong to the module that defines them.

_WHOLE = r"\s*[+-]?\d+(_\d+)*(\.\d+)?([eE][+-]?\d{1,2})?\s*"


def whole_number(text: str) -> int:
  """Parses a whole number such as 1000, 1_000 or 1e3.

  Raises:
    ValueError: the text is not a whole number.
  """
  if re.fullmatch(r"\s*0[xX][0-9a-fA-F]+\s*", text):
    return int(text, 16)
  number = Decimal(text) if re.fullmatch(_WHOLE, text) else None
  if number is None or number != int(number):
    raise ValueError(f"must be a whole number, got {text!r}")
  return int(number)


class _WholeNumberParser(flags.IntegerParser):

  def convert(self, argument: int | str) -> int:
    return argument if type(argument) is int else whole_number(argument)


def define_whole_number(
    name: str,
    default: int | None,
    help_string: str,
    lower_bound: int | None = None,
) -> flags.FlagHolder:
  """Like `flags.DEFINE_integer`, but parses with `whole_number`."""
  return flags.DEFINE(
      _WholeNumberParser(lower_bound),
      name,
      default,
      help_string,
      serializer=flags.ArgumentSerializer(),
  )


def whole_number_type(lower_bound: int | None = None) -> Callable[[str], int]:
  """Returns an argparse `type` that parses with `whole_number`."""
  parser = _WholeNumberParser(lower_bound)

  def parse(text: str) -> int:
    try:
      return parser.parse(text)
    except ValueError as e:
      raise argparse.ArgumentTypeError(str(e)) from e

  return parse


class ArgumentParser(argparse.ArgumentParser):
  """A parser for subcommands; raises ConfigError for invalid arguments."""

  def error(self, message: str) -> NoReturn:
    raise ConfigError(f"{message} (see {self.prog} --help)")

  def add_argument(self, *names, **settings):
    action = super().add_argument(*names, **settings)
    self._flags = [*getattr(self, "_flags", []), *action.option_strings]
    return action

  def parse_args(self, args=None, namespace=None):
    # First: argparse would report a misspelled required flag as missing.
    for word in sys.argv[1:] if args is None else args:
      if word == "--":
        break
      if word.startswith("--") and word.partition("=")[0] not in self._flags:
        names = [name.lstrip("-") for name in self._flags]
        raise _unknown_flag(word, names, self.prog)
    return super().parse_args(args, namespace)


class Override(NamedTuple):
  """A flag that changes one setting of a config.

  Attributes:
    typed: the flag as typed.
    path: path of the setting, such as "train.steps".
    text: the value; None without a value, as in --config.mesh.ring.
    negated: the flag has the form --noconfig.mesh.ring.
  """

  typed: str
  path: str
  text: str | None
  negated: bool = False


class OverridableFlag(flags.Flag):
  """A flag --NAME=VALUE; `run` collects --NAME.PATH=TEXT in `overrides`."""

  overrides: tuple[Override, ...] = ()


def _take_overrides(words: Iterable[str]) -> list[str]:
  """Moves overrides from the command line to their flags; returns the rest."""
  overridable = {
      name: flags.FLAGS[name]
      for name in flags.FLAGS
      if isinstance(flags.FLAGS[name], OverridableFlag)
  }
  for flag in overridable.values():
    flag.overrides = ()
  rest = []
  words = list(words)
  while words and (word := words.pop(0)) != "--":
    name, equals, text = word.partition("=")
    root, dot, path = name.lstrip("-").partition(".")
    negated = root not in overridable and root.startswith("no")
    flag = overridable.get(root[2:] if negated else root)
    if not (word.startswith("-") and dot) or flag is None:
      rest.append(word)
      continue
    if (
        not equals
        and not negated
        and words
        and re.match(r"[^-]|-\.?\d|$", words[0])
    ):
      text = words.pop(0)
      equals, word = "=", f"{word}={text}"
    override = Override(word, path, text if equals else None, negated)
    flag.overrides = (*flag.overrides, override)
  return [*rest, "--", *words] if words else rest


def _unknown_flag(word: str, names: Iterable[str], script: str) -> ConfigError:
  """Returns an error with the flag as typed and the closest match."""
  typed, equals, value = word.lstrip("-").partition("=")
  root, dot, path = typed.partition(".")
  if dot:  # A typo in --config, or --config left out.
    if not difflib.get_close_matches(root, ["config", "noconfig"], 1):
      path = typed
    near = [f"config.{path}"] if "config" in names else []
  else:
    near = difflib.get_close_matches(typed, names, 1)
  hint = f" Did you mean --{near[0]}{equals}{value}?" if near else ""
  return ConfigError(f"{word} is not a flag.{hint} See {script} --help.")


def refuse_arguments(argv: Sequence[str]) -> None:
  """Raises a ConfigError for positional arguments.

  Args:
    argv: arguments of `main`; the first is the program name.
  """
  if argv[1:]:
    word = argv[1]
    dotted = "config" in flags.FLAGS and re.match(r"\w+\.[\w.]+=", word)
    flag = word if not dotted or word[:7] == "config." else f"config.{word}"
    raise ConfigError(f"{word!r} is not a flag; write --{flag}")


def _program() -> list[str]:
  spec = sys.modules["__main__"].__spec__
  if spec is None:
    return ["python", os.path.basename(sys.argv[0])]
  return ["python", "-m", spec.name.removesuffix(".__main__")]


def command() -> str:
  """Returns the running command, relative to the repository root."""
  return shlex.join([*_program(), *sys.argv[1:]])


def _one_line(error: BaseException) -> str:
  message = str(error)
  while message[:1] in ("'", '"'):  # A KeyError's str is a repr.
    try:
      message = str(ast.literal_eval(message))
    except (SyntaxError, ValueError):
      break
  return " ".join(message.split())


def run(
    main: Callable[[list[str]], int | None], argv: Sequence[str] | None = None
) -> None:
  """Parses absl flags, calls `main` with the remaining arguments and exits.

  Exit status: the value `main` returns (None is 0); 2 with one line on stderr
  for wrong input (a ConfigError or a flag that cannot be parsed); 130 after
  Ctrl-C; 141 if the reader of stdout closes the pipe.

  Args:
    main: takes the program name and the arguments that are not flags.
    argv: the command line; defaults to sys.argv.
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
    words = flags.FLAGS.read_flags_from_files(argv[1:], force_gnu=False)
    arguments = flags.FLAGS([argv[0], *_take_overrides(words)])
  except flags.UnrecognizedFlagError as e:
    is_module = sys.modules["__main__"].__spec__ is not None
    program = shlex.join(_program()) if is_module else script
    _fail(script, _unknown_flag(e.flagvalue, list(flags.FLAGS), program))
  except (flags.Error, ValueError) as e:
    _fail(script, e)
  try:
    status = main(arguments)
    sys.stdout.flush()
    sys.exit(status)
  except BrokenPipeError:
    # The reader, such as head, closed the pipe. Flushing at exit would fail
    # again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(141)
  except ConfigError as e:
    _fail(script, e)
  except KeyboardInterrupt:
    print(f"{script}: interrupted", file=sys.stderr)
    sys.exit(130)


def _fail(script: str, error: BaseException) -> NoReturn:
  print(f"{script}: error: {_one_line(error)}", file=sys.stderr)
  sys.exit(2)
