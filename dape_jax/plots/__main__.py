"""Plots what a model's position encodings have learned; also writes CSV files.

bias: what a distant query adds to the scores of the keys before it, for every head
of a layer: the static part B, the adaptive part A - S - B (DAPE's network) and
their sum. effective-length: how many tokens the heads' static biases reach
(KERPLE, section A.5). map: B, A - S - B and A of a short text.

  python -m dape_jax.plots bias --checkpoint=runs/my_run --query=8191
  python -m dape_jax.plots effective-length --output=runs/comparison \\
      --compare runs/a runs/b
  python -m dape_jax.plots map --checkpoint=runs/my_run --string="def f(x): ..."

A checkpoint is the --workdir of a training run (its latest step) or a step in its
checkpoints folder. `python -m dape_jax.plots COMMAND --help` lists the flags.
"""

import argparse
import pathlib
import sys

import jax

from dape_jax import cli
from dape_jax.checkpoint import runs
from dape_jax.errors import ConfigError, did_you_mean
from dape_jax.evaluation.progress import Progress
from dape_jax.evaluation.report import make_folder
from dape_jax.plots import effective_length, figures
from dape_jax.plots.prefill import read_text
from dape_jax.plots.rows import rows_of_layers, write_rows

_COMMANDS = ("bias", "effective-length", "map")
_DEFAULT_HEADS = 4  # Of a map.
_MAX_MAP_LENGTH = 1024  # A map holds the square of this many numbers.


def _parser(command: str) -> argparse.ArgumentParser:
  # Not absl's flags, which have no subcommands.
  parser = cli.ArgumentParser(
      prog=f"plots {command}",
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
  )
  add = parser.add_argument
  is_single = command != "effective-length"
  add("--checkpoint", metavar="DIR", required=is_single, help="run to plot")
  add(
      "--output",
      metavar="DIR",
      help="output folder; default: plots in the workdir",
  )
  if not is_single:
    add("--compare", metavar="DIR", nargs="+", help="several runs to plot")
    add(
        "--max_distance",
        type=cli.whole_number_type(1),
        default=65_536,
        help="in tokens; for FIRE, whose bias also depends on the query's"
        " position, also the position of the query (default %(default)s)",
    )
    return parser
  add("--layer", help='from 0, comma-separated, or "all"; default: the middle')
  add(
      "--text", metavar="FILE", help="text file; default: from the run's corpus"
  )
  add(
      "--split",
      default="test",
      choices=["train", "validation", "test"],
      help="split of the corpus (default %(default)s), of which the median"
      " document that is long enough is plotted",
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
        help="tokens per prefill step (default %(default)s)",
    )
  else:
    add("--string", help="text to plot")
    add(
        "--length",
        type=cli.whole_number_type(1),
        default=64,
        help=f"tokens, up to {_MAX_MAP_LENGTH} (default %(default)s)",
    )
    add("--heads", help='from 0, comma-separated, or "all"; default: four')
  return parser


def _numbers(
    flag: str, text: str | None, count: int, default: list[int]
) -> list[int]:
  """Parses "all" or comma-separated numbers from 0 to count - 1."""
  if text is None:
    return default
  if text == "all":
    return list(range(count))
  for word in text.split(","):
    if not word.strip().isdecimal() or int(word) >= count:
      raise ConfigError(
          f"{flag}={text}: {word!r} is not one of 0 to {count - 1}; give for"
          ' example 0,1 or "all".'
      )
  return list(dict.fromkeys(map(int, text.split(","))))


def _plot_rows(command: str, flags, run: runs.Run, folder: pathlib.Path):
  """Writes the CSV and PNG files of "bias" and "map", layer by layer."""
  is_map = command == "map"
  model = run.config.model
  middle = [model.num_layers // 2]
  layers = _numbers("--layer", flags.layer, model.num_layers, middle)
  heads = list(range(model.num_heads))
  if is_map:
    text = flags.heads
    heads = _numbers("--heads", text, len(heads), heads[:_DEFAULT_HEADS])
    wanted, needed, flag = flags.length, 1, f"--length={flags.length}"
  else:
    layers = figures.layers_with_bias(run, layers)
    wanted = needed = flags.query + 1
    flag = f"--query={flags.query}"
  tokens, source = read_text(run, flags, wanted)
  length = len(tokens)
  if length < needed:
    raise ConfigError(
        f"{flag} needs a text of {needed} tokens, and {source} has {length}:"
        " lower it, or choose another text (--text=FILE)."
    )
  progress = Progress(length, flags.checkpoint)
  for rows in rows_of_layers(
      model,
      jax.device_put(run.params, jax.local_devices()[0]),
      tokens,
      layers,
      num_queries=length if is_map else 1,
      chunk=length if is_map else flags.chunk,
      on_tokens=progress.advance,
  ):
    progress.close()
    sizes = figures.statistics(rows)
    print(
        f"layer {rows.layer}, root mean squares: scores S"
        f" {sizes['scores']:.4g}, static B {sizes['static']:.4g}, adaptive"
        f" A - S - B {sizes['adaptive']:.4g}, sum A - S {sizes['total']:.4g}"
    )
    last = f"length{length}" if is_map else f"query{flags.query}"
    stem = folder / f"{command}_{_name(run)}_layer{rows.layer}_{last}"
    csv, png = f"{stem}.csv", f"{stem}.png"
    write_rows(rows, csv, heads=heads, with_query=is_map)
    if is_map:
      figures.draw_map(run, rows, heads, source, png)
    else:
      figures.draw_bias(run, rows, source, png)
    print(csv, png, sep="\n")


def _name(run: runs.Run) -> str:
  (name,) = runs.run_names([run])
  return f"{name}_step{run.step}"


def _plot_lengths(flags, loaded, folder: pathlib.Path) -> None:
  lengths = [
      effective_length.lengths_of_run(run, flags.max_distance) for run in loaded
  ]
  stem = folder / "effective_length"
  if len(loaded) == 1:
    stem = folder / f"effective_length_{_name(loaded[0])}"
  arguments = loaded, runs.run_names(loaded), lengths
  csv, png = f"{stem}.csv", f"{stem}.png"
  effective_length.write_lengths(*arguments, csv, flags.max_distance)
  effective_length.draw_lengths(*arguments, png, flags.max_distance)
  print(csv, png, sep="\n")


def _check(command: str, flags: argparse.Namespace) -> None:
  if command == "effective-length":
    if (flags.checkpoint is None) == (flags.compare is None):
      raise ConfigError("give either --checkpoint=DIR or --compare DIR DIR ...")
    if flags.compare is not None and not flags.output:
      raise ConfigError("--compare needs --output=DIR.")
  elif command == "map":
    if flags.length > _MAX_MAP_LENGTH:
      raise ConfigError(
          f"--length={flags.length}: must be at most {_MAX_MAP_LENGTH}; a map"
          " holds the square of that many numbers."
      )
    if flags.text is not None and flags.string is not None:
      raise ConfigError("give only one of --string and --text.")


def main(argv: list[str]) -> None:
  """Runs one subcommand.

  Args:
    argv: subcommand and flags.

  Raises:
    ConfigError: the flags, the checkpoint or the text are invalid.
  """
  if not argv or argv[0] in ("-h", "--help"):
    print(__doc__.strip())
    if not argv:
      raise ConfigError(f"name a subcommand: {', '.join(_COMMANDS)}.")
    return
  command, *rest = argv
  if command not in _COMMANDS:
    raise ConfigError(
        f"unknown subcommand {command!r}.{did_you_mean(command, _COMMANDS)}"
    )
  flags = _parser(command).parse_args(rest)
  _check(command, flags)
  folders = getattr(flags, "compare", None) or [flags.checkpoint]
  loaded = [runs.load_run(folder) for folder in folders]
  output = pathlib.Path(flags.output or loaded[0].workdir / "plots")
  if command == "effective-length":
    make_folder(output)
    _plot_lengths(flags, loaded, output)
  else:
    runs.check_reads_text(
        loaded[0], f"{command} reads text: give one trained on text"
    )
    make_folder(output)
    _plot_rows(command, flags, loaded[0], output)


if __name__ == "__main__":
  # absl gets no flags: it has no subcommands.
  cli.run(lambda _: main(sys.argv[1:]), ["plots"])
