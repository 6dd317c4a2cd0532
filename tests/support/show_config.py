"""A command that prints the experiment of its --config flags as JSON."""

import json

from dape_jax import cli
from dape_jax.config import experiment_to_dict, overrides

_CONFIG = overrides.define_config_flag()


def main(argv):
  cli.refuse_arguments(argv)
  print(json.dumps(experiment_to_dict(overrides.experiment_from_flag(_CONFIG))))
