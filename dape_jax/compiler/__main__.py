"""Compiles a config for TPUs that are not there, and says whether it fits.

  pip install libtpu   # Linux on x86-64; no TPU is needed
  python -m dape_jax.compiler --topology=v5p:4x4x4 \\
      --config=configs/lm.py:size=6.7b,encoding=dape_kerple_log,length=512

The real training step of the config, its mesh included, goes through the real TPU
compiler; --eval_length=131072 compiles eval.py's step for one chip instead, with
a cache of as many tokens. Prints, of one chip: bytes of parameters, optimizer,
batch and temporaries, the peak and the limit; FLOPs, bytes moved, the roofline's
time and the part of it that collectives take; and what to change if it does not
fit. That takes seconds; --generate_code compiles to the end. --largest_batch looks
for the largest batch that fits. --json=FILE adds a line to a file, which
--table=FILE prints as a table; the same command again takes its numbers from there.

Exit status: 0 it fits, 3 it does not, 2 wrong input.
"""

import json
import pathlib
import sys
from typing import Any

from absl import flags

from dape_jax import cli
from dape_jax.compiler import report as reports
from dape_jax.compiler import tpu as tpu_compiler
from dape_jax.config import overrides
from dape_jax.errors import ConfigError

_CONFIG = overrides.define_config_flag()
_TOPOLOGY = flags.DEFINE_string(
    "topology", None, "Chips, as v5e:4x4, v5p:4x4x4 or v6e:8x8."
)
_EVAL_LENGTH = cli.define_whole_number(
    "eval_length",
    0,
    "Compile the reading of texts of so many tokens on one chip, instead of the"
    " training step.",
    lower_bound=0,
)
flags.DEFINE_alias("eval-length", "eval_length")
_LARGEST_BATCH = flags.DEFINE_bool(
    "largest_batch",
    False,
    "Find the largest config.train.batch_size, times powers of two, that fits;"
    " each is planned by the compiler.",
)
_GENERATE_CODE = flags.DEFINE_bool(
    "generate_code",
    False,
    "Compile to the end, for minutes: no number changes, but a kernel that the"
    " compiler refuses is found.",
)
_JSON = flags.DEFINE_string(
    "json", None, "File to which the numbers are added, as a line of JSON."
)
_TABLE = flags.DEFINE_string(
    "table",
    None,
    "Print the lines of such a file as a table, and compile nothing.",
)


def _config():
  if _CONFIG.value is None or not _TOPOLOGY.value:
    raise ConfigError("give --config and --topology, or --table.")
  if _LARGEST_BATCH.value and _EVAL_LENGTH.value:
    raise ConfigError(
        "--largest_batch is for training; leave --eval_length out."
    )
  return overrides.experiment_from_flag(_CONFIG)


def _open(file: str):
  try:
    return pathlib.Path(file).open("a")
  except OSError as e:
    raise ConfigError(f"--json={file} cannot be written ({e.strerror}).") from e


def _report(config) -> dict[str, Any]:
  """Returns what the compiler says, or has said to the same command."""
  # Imported late: JAX takes seconds to start, and a wrong flag is told at once.
  from dape_jax.compiler import ahead_of_time

  command = cli.command()
  if _JSON.value:
    with _open(_JSON.value):  # Told before the minutes of compiling.
      pass
    for report in reports.read_lines(_JSON.value, "--json"):
      if report["command"] == command:
        return report
  tpu_compiler.check_installed("--topology")
  code = _GENERATE_CODE.value
  if _LARGEST_BATCH.value:
    report = ahead_of_time.compile_largest_batch(config, _TOPOLOGY.value, code)
  else:
    report = ahead_of_time.compile_for(
        config, _TOPOLOGY.value, _EVAL_LENGTH.value, code
    )
  report["command"] = command
  if _JSON.value:
    with _open(_JSON.value) as stream:
      stream.write(json.dumps(report) + "\n")
  return report


def main(argv: list[str]) -> None:
  cli.refuse_arguments(argv)
  if _TABLE.value:
    print(reports.table(reports.read_lines(_TABLE.value, "--table")))
    return
  report = _report(_config())
  print(reports.text(report))
  if not report["fits"]:
    sys.exit(3)


if __name__ == "__main__":
  cli.run(main)
