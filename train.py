"""Trains a decoder language model; the same command goes on where it stopped.

  python train.py --config=configs/demo.py --workdir=runs/demo
  python train.py --config=configs/demo.py --workdir=runs/2 --config.seed=2

The workdir gets config.json, metrics.jsonl, tensorboard/ and checkpoints/. Told to
stop by SIGTERM, a run saves and ends. On Cloud TPU, GKE, Slurm and Open MPI start
the same command in every process; elsewhere give each --coordinator_address,
--num_processes and --process_id.

Exit status: 0 finished, or stopped by SIGTERM and saved; 1 the loss became infinite
or NaN, or the last checkpoint could not be written; 2 wrong input.
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
    " gone on with from its latest checkpoint.",
)
_SKIP_DAMAGED = flags.DEFINE_bool(
    "skip_damaged",
    False,
    "Go on from the latest checkpoint that is whole; damaged ones after it are"
    " moved to WORKDIR/damaged_checkpoints.",
)
_PROFILE_STEPS = flags.DEFINE_list(
    "profile_steps",
    None,
    "First and last step to profile, as 10,15; into WORKDIR/profile, for XProf.",
)
_COORDINATOR = flags.DEFINE_string(
    "coordinator_address",
    None,
    "host:port of process 0, where the environment does not say.",
)
_NUM_PROCESSES = cli.define_whole_number(
    "num_processes", None, "Processes of the run."
)
_PROCESS_ID = cli.define_whole_number(
    "process_id", None, "Number of this process, from 0."
)
flags.mark_flags_as_required(["config", "workdir"])


def _profile_steps() -> tuple[int, int] | None:
  steps = _PROFILE_STEPS.value
  if steps is None:
    return None
  if len(steps) != 2 or not all(step.isdecimal() for step in steps):
    raise ConfigError(
        f"--profile_steps={','.join(steps)}: give the first and the last step,"
        " as 10,15."
    )
  first, last = map(int, steps)
  if not 1 <= first <= last:
    raise ConfigError(
        f"--profile_steps={first},{last}: must be 1 or more, and in order."
    )
  return first, last


def main(argv: list[str]) -> None:
  cli.refuse_arguments(argv)
  config = overrides.experiment_from_flag(_CONFIG)
  profile_steps = _profile_steps()
  # JAX and orbax take seconds to start; a wrong setting is told at once.
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
        "train.py: the same command goes on from the last checkpoint, if there is"
        " one; kill -TERM saves before it ends.",
        file=sys.stderr,
    )
    raise


if __name__ == "__main__":
  cli.run(main)
