"""Trains a decoder language model; the same command goes on where it stopped.

  python train.py --config=configs/demo.py --workdir=runs/demo
  python train.py --config=configs/demo.py --workdir=runs/2 --config.seed=2

The workdir gets config.json, metrics.jsonl, tensorboard/ and checkpoints/.
Exit status: 0 finished, 1 the loss became infinite or NaN, 2 wrong input.
"""

import sys

from absl import flags
from ml_collections import config_flags

from dape_jax import cli
from dape_jax.config_dict import experiment_from_dict
from dape_jax.errors import ConfigError

_CONFIG = config_flags.DEFINE_config_file(
    "config",
    None,
    "File that defines get_config(); --config.SECTION.SETTING=VALUE changes one"
    " setting (dape_jax/config.py and model_config.py list them all).",
    lock_config=True,
)
_WORKDIR = flags.DEFINE_string(
    "workdir",
    None,
    "Folder for checkpoints and metrics, created if missing; a run in it is"
    " gone on with from its latest checkpoint.",
)
flags.mark_flags_as_required(["config", "workdir"])


def main(argv: list[str]) -> None:
  if argv[1:]:
    raise ConfigError(f"{argv[1]!r} is not a flag; write --{argv[1]}")
  try:
    values = _CONFIG.value.to_dict()
  except OSError as e:  # ml_collections reports a missing file on first use.
    raise ConfigError(f"--config: {e}") from e
  except AttributeError as e:
    raise ConfigError(
        "--config: get_config() must return an ml_collections.ConfigDict."
    ) from e
  config = experiment_from_dict(values)
  # JAX and orbax take seconds to start; a wrong setting is told at once.
  from dape_jax.training import loop  # pylint: disable=g-import-not-at-top

  try:
    loop.train(config, _WORKDIR.value)
  except loop.NonFiniteLossError as e:
    sys.exit(f"train.py: error: {e}")


if __name__ == "__main__":
  cli.run(main)
