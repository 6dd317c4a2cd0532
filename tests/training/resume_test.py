"""Which settings a resumed run may change."""

import json

import pytest

from dape_jax.config.dicts import experiment_to_dict
from dape_jax.errors import ConfigError
from dape_jax.training.resume import check_same_config


@pytest.mark.parametrize(
    "name, value",
    [
        ("model.num_heads", 4),
        ("model.encoding_options", {"width": 8}),
        ("data.length", 16),
        ("optimizer.learning_rate", 0.5),
        ("train.steps", 3),
        ("train.accumulation", 2),
        ("model.windows", (0, 8)),
        ("seed", 1),
    ],
)
def test_a_workdir_of_another_config_is_refused(make_config, name, value):
  config = make_config()
  stored = experiment_to_dict(config)
  other = make_config({name: value})
  with pytest.raises(ConfigError, match=rf"config\.{name}.*--workdir"):
    check_same_config(other, stored)
  # What is stored is JSON.
  for same in (config, other):
    check_same_config(same, json.loads(json.dumps(experiment_to_dict(same))))


def test_settings_that_change_no_result_may_differ(make_config):
  stored = experiment_to_dict(make_config())
  check_same_config(
      make_config(
          {
              "data.dir": "elsewhere",
              "data.source": "moved/there",
              "train.log_every": 7,
              "train.keep_checkpoints": 1,
          }
      ),
      stored,
  )
