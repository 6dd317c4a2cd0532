"""Trains a decoder language model. Rerun the command to resume.

  python train.py --config=configs/demo.py --workdir=runs/demo
  python train.py --config=configs/demo.py --workdir=runs/2 --config.seed=2

The workdir gets config.json, metrics.jsonl, tensorboard/ and checkpoints/. On SIGTERM
a run saves a checkpoint and ends. On Cloud TPU, GKE, Slurm and Open MPI, start the
same command in every process; elsewhere also give each --coordinator_address,
--num_processes and --process_id.

Exit status: 0 finished, or stopped by SIGTERM and saved; 1 the loss became infinite
or NaN, or the last checkpoint could not be written; 2 invalid input.
"""

import sys

from absl import flags

from dape_jax import cli
from dape_jax.config import overrides
from dape_jax.errors import ConfigError

_CONFIG = overrides.define_config_flag()
_WORKDIR = flags.DEFINE_string(
    "workdir",
    None,
    "Folder for checkpoints and metrics, created if missing; a run in it is"
    " resumed from its latest checkpoint.",
)
_SKIP_DAMAGED = flags.DEFINE_bool(
    "skip_damaged",
    False,
    "Resume from the latest intact checkpoint; move damaged ones after it to"
    " WORKDIR/damaged_checkpoints.",
)
_PROFILE_STEPS = flags.DEFINE_list(
    "profile_steps",
    None,
    "First and last step to profile, for example 10,15; the profile goes to"
    " WORKDIR/profile, for XProf.",
)
_COORDINATOR = flags.DEFINE_string(
    "coordinator_address",
    None,
    "host:port of process 0, if the environment does not provide it.",
)
_NUM_PROCESSES = cli.define_whole_number(
    "num_processes", None, "Number of processes in the run."
)
_PROCESS_ID = cli.define_whole_number(
    "process_id", None, "Index of this process, from 0."
)
flags.mark_flags_as_required(["config", "workdir"])


def _profile_steps() -> tuple[int, int] | None:
  steps = _PROFILE_STEPS.value
  if steps is None:
    return None
  if len(steps) != 2 or not all(step.isdecimal() for step in steps):
    raise ConfigError(
        f"--profile_steps={','.join(steps)}: give the first and the last step,"
        " for example 10,15."
    )
  first, last = map(int, steps)
  if not 1 <= first <= last:
    raise ConfigError(
        f"--profile_steps={first},{last}: must be at least 1 and in order."
    )
  return first, last


def main(argv: list[str]) -> None:
  cli.refuse_arguments(argv)
  config = overrides.experiment_from_flag(_CONFIG)
  profile_steps = _profile_steps()
  # JAX and orbax take seconds to import; invalid settings are reported before.
  from dape_jax.parallel import distributed
  from dape_jax.training import loop

  distributed.initialize(
      _COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value
  )
  try:
    loop.train(
        config,
        _WORKDIR.value,
        skip_damaged=_SKIP_DAMAGED.value,
        profile_steps=profile_steps,
    )
  except loop.FailedRunError as e:
    sys.exit(f"train.py: error: {e}")
  except KeyboardInterrupt:
    print(
        "train.py: rerun the command to resume from the latest checkpoint, if any;"
        " kill -TERM saves one before it ends.",
        file=sys.stderr,
    )
    raise


if __name__ == "__main__":
  cli.run(main)
