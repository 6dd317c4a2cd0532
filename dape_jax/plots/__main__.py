"""Pictures of what a model has learned, and their numbers as CSV files.

bias: what a query far out adds to the scores of the keys before it, for every
head of a layer: the static part B, the adaptive part A - S - B (DAPE's network)
and the sum. effective-length: over how many tokens the heads' static biases
reach (KERPLE, section A.5). map: B, A - S - B and A of a short text.

  python -m dape_jax.plots bias --checkpoint=runs/my_run --query=8191
  python -m dape_jax.plots effective-length --output=runs/comparison \\
      --compare runs/a runs/b
  python -m dape_jax.plots map --checkpoint=runs/my_run --string="def f(x): ..."

A checkpoint is the --workdir of a training run (the latest step) or a step in its
checkpoints folder. `python -m dape_jax.plots COMMAND --help` has the flags.
"""

import argparse
import pathlib
import sys

from dape_jax import cli
from dape_jax.errors import ConfigError, did_you_mean
from dape_jax.plots.command_line import COMMANDS, LONGEST_MAP, parser_of


def _layers(text: str | None, num_layers: int) -> list[int]:
  if text is None:
    return [num_layers // 2]
  if text == "all":
    return list(range(num_layers))
  if not text.isdecimal() or int(text) >= num_layers:
    raise ConfigError(
        f'--layer={text}: must be 0 to {num_layers - 1} or "all", for the'
        f" checkpoint has {num_layers} layers."
    )
  return [int(text)]


def _rows(flags, run, text, layers, num_queries: int, chunk: int):
  """Yields the layers' rows, with a line on how large their parts are."""
  import jax

  from dape_jax.evaluation.progress import Progress
  from dape_jax.plots import bias, rows

  progress = Progress(len(text.tokens), flags.checkpoint)
  for found in rows.rows_of_layers(
      run.config.model,
      jax.device_put(run.params, jax.local_devices()[0]),
      text.tokens,
      layers,
      num_queries=num_queries,
      chunk=chunk,
      on_tokens=progress.advance,
  ):
    progress.close()
    sizes = bias.statistics(found)
    print(
        f"layer {found.layer}, root mean squares: scores S"
        f" {sizes['scores']:.4g}, static B {sizes['static']:.4g}, adaptive"
        f" A - S - B {sizes['adaptive']:.4g}, sum A - S {sizes['total']:.4g}"
    )
    yield found


def _bias(flags, run, folder: pathlib.Path) -> None:
  from dape_jax.plots import bias, files, text

  layers = _layers(flags.layer, run.config.model.num_layers)
  layers = bias.layers_with_bias(run, layers)
  wanted = flags.query + 1
  source = text.read_text(
      run,
      wanted,
      text=flags.text,
      split=flags.split,
      data_dir=flags.data_dir,
  )
  text.require(source, f"--query={flags.query}", wanted)
  for rows in _rows(flags, run, source, layers, 1, flags.chunk):
    stem = f"bias_{files.stem_of(run)}_layer{rows.layer}_query{flags.query}"
    heads = range(len(rows.scores))
    csv = folder / f"{stem}.csv"
    print(files.write_rows(rows, csv, heads=heads, with_query=False))
    bias.draw_bias(run, rows, source.source, folder / f"{stem}.png")
    print(folder / f"{stem}.png")


def _map(flags, run, folder: pathlib.Path) -> None:
  from dape_jax.plots import files, score_map, text

  if flags.length > LONGEST_MAP:
    raise ConfigError(
        f"--length={flags.length}: must be up to {LONGEST_MAP}, a map has as"
        " many numbers as its square."
    )
  if flags.text is not None and flags.string is not None:
    raise ConfigError("--string and --text: give one of them.")
  layers = _layers(flags.layer, run.config.model.num_layers)
  heads = score_map.choose_heads(run, flags.heads)
  source = text.read_text(
      run,
      flags.length,
      text=flags.text,
      string=flags.string,
      split=flags.split,
      data_dir=flags.data_dir,
  )
  text.require(source, f"--length={flags.length}", 1)
  length = len(source.tokens)
  for rows in _rows(flags, run, source, layers, length, length):
    stem = f"map_{files.stem_of(run)}_layer{rows.layer}_length{length}"
    csv = folder / f"{stem}.csv"
    print(files.write_rows(rows, csv, heads=heads, with_query=True))
    score_map.draw_map(run, rows, heads, source.source, folder / f"{stem}.png")
    print(folder / f"{stem}.png")


def _effective_length(flags, loaded, folder: pathlib.Path) -> None:
  from dape_jax.checkpoint.runs import run_names
  from dape_jax.plots import effective_length, files

  names = run_names(loaded)
  lengths = [
      effective_length.lengths_of_run(run, flags.max_distance) for run in loaded
  ]
  stem = "effective_length"
  if len(loaded) == 1:
    stem += f"_{files.stem_of(loaded[0])}"
  paths = folder / f"{stem}.csv", folder / f"{stem}.png"
  arguments = (loaded, names, lengths)
  effective_length.write_lengths(*arguments, paths[0], flags.max_distance)
  effective_length.draw_lengths(*arguments, paths[1], flags.max_distance)
  print(*paths, sep="\n")


def _folders(command: str, flags: argparse.Namespace) -> list[str]:
  """Returns the folders of the checkpoints."""
  if command != "effective-length":
    if flags.checkpoint is None:
      raise ConfigError("give --checkpoint=DIR, the --workdir of a run.")
    return [flags.checkpoint]
  if (flags.checkpoint is None) == (flags.compare is None):
    raise ConfigError("give either --checkpoint=DIR or --compare DIR DIR ...")
  if flags.compare is not None and not flags.output:
    raise ConfigError("--compare needs --output=DIR.")
  return flags.compare or [flags.checkpoint]


def main(argv: list[str]) -> None:
  """Runs one sub-command.

  Args:
    argv: sub-command and flags.

  Raises:
    ConfigError: they are wrong, or the checkpoint or the text is.
  """
  if not argv or argv[0] in ("-h", "--help"):
    print(__doc__.strip())
    if not argv:
      raise ConfigError(f"name a sub-command: {', '.join(COMMANDS)}.")
    return
  command, *rest = argv
  if command not in COMMANDS:
    raise ConfigError(
        f"unknown sub-command {command!r}.{did_you_mean(command, COMMANDS)}"
    )
  flags = parser_of(command, __doc__).parse_args(rest)
  folders = _folders(command, flags)
  # Orbax takes seconds to start; a wrong flag is told at once.
  from dape_jax.checkpoint import runs
  from dape_jax.evaluation import report

  loaded = [runs.load_run(folder) for folder in folders]
  if command != "effective-length":
    runs.check_reads_text(
        loaded[0], f"{command} reads text: give one trained on text"
    )
  output = pathlib.Path(flags.output or loaded[0].workdir / "plots")
  report.make_folder(output)
  if command == "effective-length":
    _effective_length(flags, loaded, output)
  elif command == "bias":
    _bias(flags, loaded[0], output)
  else:
    _map(flags, loaded[0], output)


if __name__ == "__main__":
  # No flags are left for absl, whose flags know no sub-commands.
  cli.run(lambda _: main(sys.argv[1:]), ["plots"])
