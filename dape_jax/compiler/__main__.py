"""Compiles a config for TPUs, without one, and reports whether it fits.

  pip install libtpu   # Linux on x86-64; no TPU is needed
  python -m dape_jax.compiler --topology=v5p:4x4x4 \\
      --config=configs/lm.py:size=6.7b,encoding=dape_kerple_log,length=512

The TPU compiler compiles the config's own training step on its own mesh.
--eval_length=131072 instead compiles eval.py's step for one chip, with a cache of
that many tokens. Prints, per chip: bytes of parameters, optimizer, batch and
temporaries, peak and limit; FLOPs, bytes moved, roofline time and the share of
collectives; and what to change if the program does not fit. This takes seconds;
--generate_code runs the compiler to the end. --largest_batch searches for the
largest batch that fits. --json=FILE appends the report to a file; rerunning the same
command reads it from there. --table=FILE prints such a file as a table.

Exit status: 0 if it fits, 3 if it does not, 2 for invalid input.
"""

import json
import pathlib
import sys
from typing import Any

from absl import flags

from dape_jax import cli
from dape_jax.compiler import report as reports
from dape_jax.compiler import tpu
from dape_jax.config import overrides
from dape_jax.errors import ConfigError

_CONFIG = overrides.define_config_flag()
_TOPOLOGY = flags.DEFINE_string(
    "topology", None, "Chips, such as v5e:4x4, v5p:4x4x4 or v6e:8x8."
)
_EVAL_LENGTH = cli.define_whole_number(
    "eval_length",
    0,
    "Compile evaluation of texts of this many tokens on one chip, instead of the"
    " training step.",
    lower_bound=0,
)
flags.DEFINE_alias("eval-length", "eval_length")
_LARGEST_BATCH = flags.DEFINE_bool(
    "largest_batch",
    False,
    "Find the largest batch that fits: config.train.batch_size times a power of"
    " two.",
)
_GENERATE_CODE = flags.DEFINE_bool(
    "generate_code",
    False,
    "Also generate code, which takes minutes. The numbers are the same, but"
    " kernels that the compiler rejects are found.",
)
_JSON = flags.DEFINE_string(
    "json", None, "File to which the report is appended, as a line of JSON."
)
_TABLE = flags.DEFINE_string(
    "table", None, "Print a file written by --json as a table; compile nothing."
)


def _config():
  if _CONFIG.value is None or not _TOPOLOGY.value:
    raise ConfigError("give --config and --topology, or --table.")
  if _LARGEST_BATCH.value and _EVAL_LENGTH.value:
    raise ConfigError(
        "--largest_batch is for training; leave --eval_length out."
    )
  return overrides.experiment_from_flag(_CONFIG)


def _append(text: str) -> None:
  try:
    with pathlib.Path(_JSON.value).open("a") as stream:
      stream.write(text)
  except OSError as e:
    raise ConfigError(
        f"--json={_JSON.value} cannot be written ({e.strerror})."
    ) from e


def _report(config) -> dict[str, Any]:
  """Returns the compiler's report, from --json if this command wrote it."""
  # Imported late: JAX takes seconds to start, and invalid flags fail at once.
  from dape_jax.compiler import ahead_of_time

  command = cli.command()
  if _JSON.value:
    _append("")  # Fails before the minutes of compiling.
    for report in reports.read_lines(_JSON.value, "--json"):
      if report["command"] == command:
        return report
  tpu.check_installed("--topology")
  code = _GENERATE_CODE.value
  if _LARGEST_BATCH.value:
    report = ahead_of_time.compile_largest_batch(config, _TOPOLOGY.value, code)
  else:
    report = ahead_of_time.compile_for(
        config, _TOPOLOGY.value, _EVAL_LENGTH.value, code
    )
  report["command"] = command
  if _JSON.value:
    _append(json.dumps(report) + "\n")
  return report


def main(argv: list[str]) -> None:
  cli.refuse_arguments(argv)
  if _TABLE.value:
    lines = reports.read_lines(_TABLE.value, "--table")
    if not lines:
      raise ConfigError(f"--table={_TABLE.value} has no reports.")
    print(reports.table(lines))
    return
  report = _report(_config())
  print(reports.text(report))
  if not report["fits"]:
    sys.exit(3)


if __name__ == "__main__":
  cli.run(main)
