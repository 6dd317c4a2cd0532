"""Trains a model on text or a generated task. Rerun the command to resume.

  python train.py --config=configs/demo.py --workdir=runs/my_run
  python train.py --config=configs/demo.py --workdir=runs/seed2 --config.seed=2

Writes config.json, metrics.jsonl, tensorboard/ and checkpoints/ to the workdir.
On SIGTERM, saves a checkpoint and exits. For multiple processes, run the same
command in each; outside Cloud TPU, GKE, Slurm and Open MPI, also pass
--coordinator_address, --num_processes and --process_id.

Exit status: 0 if finished, or stopped by SIGTERM and saved; 1 if the loss
became infinite or NaN, or the last checkpoint was not written; 2 for invalid
input.
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
    "Folder for checkpoints and metrics, created if missing; resumes from the"
    " latest checkpoint in it.",
)
_SKIP_DAMAGED = flags.DEFINE_bool(
    "skip_damaged",
    False,
    "Resume from the latest intact checkpoint and move later, damaged ones to"
    " WORKDIR/damaged_checkpoints.",
)
_PROFILE_STEPS = flags.DEFINE_list(
    "profile_steps",
    None,
    "First and last step to profile, for example 10,15; writes a profile for"
    " XProf to WORKDIR/profile.",
)
_COORDINATOR = flags.DEFINE_string(
    "coordinator_address",
    None,
    "host:port of process 0; default: from the environment.",
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
  # JAX and orbax take seconds to import; report invalid settings first.
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
        "train.py: rerun the command to resume from the latest checkpoint, if any."
        " To save one on exit, stop a run with kill -TERM.",
        file=sys.stderr,
    )
    raise


if __name__ == "__main__":
  cli.run(main)
