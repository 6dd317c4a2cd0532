"""Which settings a resumed run may change."""

import json

import pytest

from dape_jax.config.dicts import experiment_to_dict
from dape_jax.errors import ConfigError
from dape_jax.training.workdir import check_same_config


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
def test_workdir_of_another_config_is_refused(make_config, name, value):
  config, other = make_config(), make_config({name: value})
  with pytest.raises(ConfigError, match=rf"config\.{name}.*--workdir"):
    check_same_config(other, experiment_to_dict(config))
  # Stored configs have been through JSON.
  for same in (config, other):
    check_same_config(same, json.loads(json.dumps(experiment_to_dict(same))))


def test_settings_without_effect_on_the_result_may_change(make_config):
  changes = {
      "data.dir": "elsewhere",
      "data.source": "moved/there",
      "train.log_every": 7,
      "train.keep_checkpoints": 1,
  }
  check_same_config(make_config(changes), experiment_to_dict(make_config()))
