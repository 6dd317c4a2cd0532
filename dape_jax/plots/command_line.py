"""Flags of the sub-commands.

Not absl's, which know no sub-commands and are of the whole process.
"""

import argparse

from dape_jax import cli

COMMANDS = ("bias", "effective-length", "map")
# Of a side: a map has as many numbers as its square.
LONGEST_MAP = 1024


def parser_of(command: str, description: str) -> argparse.ArgumentParser:
  """Returns the parser of a sub-command's flags.

  What is wrong with them is a ConfigError.

  Args:
    command: of COMMANDS.
    description: what --help says first.
  """
  parser = cli.ArgumentParser(
      prog=f"plots {command}",
      description=description,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
  )
  add = parser.add_argument
  add("--checkpoint", metavar="DIR", help="the run to draw")
  add(
      "--output",
      metavar="DIR",
      help="folder of the files; default: plots in the workdir",
  )
  if command == "effective-length":
    add("--compare", metavar="DIR", nargs="+", help="several runs to draw")
    add(
        "--max_distance",
        type=cli.whole_number_type(1),
        default=65_536,
        help="tokens; FIRE's bias, which depends on the query's position too, is"
        " that of a query at this position (default %(default)s)",
    )
    return parser
  add("--layer", help='from 0, or "all"; default: the middle one')
  add("--text", metavar="FILE", help="the text; default: of the run's corpus")
  add(
      "--split",
      default="test",
      choices=["train", "validation", "test"],
      help="of the corpus (default %(default)s): the middle one of its documents"
      " that are long enough",
  )
  add(
      "--data_dir",
      default="",
      help="folder of the prepared data; default: as in training",
  )
  if command == "bias":
    add(
        "--query",
        type=cli.whole_number_type(0),
        default=8191,
        help="position of the query, from 0 (default %(default)s)",
    )
    add(
        "--chunk",
        type=cli.whole_number_type(1),
        default=512,
        help="tokens read at a time (default %(default)s)",
    )
  else:
    add("--string", help="the text itself")
    add(
        "--length",
        type=cli.whole_number_type(1),
        default=64,
        help=f"tokens, up to {LONGEST_MAP} (default %(default)s)",
    )
    add("--heads", help="comma list, from 0; default: the first four")
  return parser
