"""Settings are validated once, with the field and the fix in the message."""

import pytest

from dape_jax.config import ModelConfig
from dape_jax.config_dict import experiment_from_dict, experiment_to_dict
from dape_jax.errors import ConfigError


@pytest.mark.parametrize(
    "values, message",
    [
        ({"modle": {}}, 'config.modle is not a setting. Did you mean "model"'),
        ({"train": {"stepz": 3}}, "config.train.stepz is not a setting"),
        ({"train": {"steps": 3.0}}, "config.train.steps=3.0 is of type float"),
        ({"train": {"steps": 0}}, "config.train.steps=0: must be greater"),
        ({"train": {"accumulation": 5}}, "does not divide"),
        ({"model": {"num_heads": 5}}, "config.model.width=768"),
        ({"model": {"num_kv_heads": 5}}, "config.model.num_kv_heads=5"),
        ({"model": {"dtype": "float16"}}, "config.model.dtype='float16'"),
        ({"model": {"encoding_options": [1]}}, "must be a mapping"),
        ({"model": {"windows": 5}}, "config.model.windows=5: must be a tuple"),
        ({"model": {"windows": (0, -1)}}, "0 for none"),
        ({"model": {"windows": (0,) * 5}}, "repeat after 5 layers"),
        ({"model": {"encoding": "a,b,c,d,e"}}, "repeat after 5 layers"),
        (
            {"model": {"encoding": "rope,nope", "share_encoding": True}},
            "needs one encoding",
        ),
        ({"train": {"max_position": 100}}, "at least the 512 tokens of a row"),
        (
            {
                "train": {"max_position": 1000},
                "model": {"windows": (0, 64)},
            },
            "would hold fewer tokens",
        ),
        ({"model": None}, "config.model=None: must be a section"),
        ({"data": {"length": -1}}, "config.data.length=-1"),
        ({"data": {"packing": "segment"}}, 'Did you mean "segments"'),
        ({"optimizer": {"beta1": 1.0}}, r"must be in \[0, 1\)"),
        ({"optimizer": {"learning_rate": float("inf")}}, "not finite"),
        ({"seed": 2**32}, "config.seed=4294967296"),
        ({"seed": 1.0}, "config.seed=1.0"),
    ],
)
def test_wrong_settings_are_refused(values, message):
  with pytest.raises(ConfigError, match=message):
    experiment_from_dict(values)


def test_dicts_come_back():
  config = experiment_from_dict(
      {"seed": 3, "model": {"encoding_options": {"width": 16}}}
  )
  assert experiment_from_dict(experiment_to_dict(config)) == config
  # As JSON has it, a list.
  config = experiment_from_dict({"model": {"windows": [0, 128]}})
  assert config.model.windows == (0, 128)
  config = experiment_from_dict({"model": {"encoding_options": {"width": 16}}})
  assert hash(config.model) == hash(ModelConfig(encoding_options={"width": 16}))
