"""Settings are validated; errors name the field and the fix."""

import json

import pytest

from dape_jax.config import DataConfig, ModelConfig, TaskConfig
from dape_jax.config.dicts import experiment_from_dict, experiment_to_dict
from dape_jax.errors import ConfigError


def task(name, **settings):
  """Returns settings of an experiment on a task."""
  return {"data": {"task": name} | settings}


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
            "needs a single encoding",
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
        ({"optimizer": {"learning_rate": float("inf")}}, "must be finite"),
        ({"seed": 2**32}, "config.seed=4294967296"),
        ({"seed": 1.0}, "config.seed=1.0"),
        ({"data": None}, "config.data=None: must be a section"),
        ({"data": {"tsak": "copy"}}, "config.data.tsak is not a setting"),
        ({"model": {"causal": 1}}, "config.model.causal=1 is of type int"),
        ({"model": {"causal": False}}, "an encoder sees the next token"),
        ({"model": {"num_outputs": 9}}, "config.model.num_outputs=9: text"),
        ({"model": {"num_outputs": -1}}, "must be 0 or more"),
        (
            {"model": {"dropout": 1.0}},
            r"config.model.dropout=1.0: must be in \[0, 1",
        ),
        ({"model": {"dropout": float("nan")}}, "dropout=nan: must be finite"),
        (
            {"model": {"norm": "Post"}},
            'norm=.Post. is unknown. Did you mean "p',
        ),
        ({"model": {"activation": "silu"}}, "activation='silu' is unknown"),
        ({"model": {"init": "haiku"}}, "init='haiku' is unknown"),
        ({"train": {"loss_mean": "rows"}}, 'Did you mean "row"'),
        (
            task("cpoy"),
            "config.data.task='cpoy' is unknown. Did you mean \"copy",
        ),
        (task(3), "config.data.task=3 is of type int"),
        (task("copy", length=0), "config.data.length=0: must be greater"),
        (task("passkey", length=5), "the shortest problem of passkey is 11"),
        (task("copy", source="code"), "config.data.source is not a setting"),
        (task("copy", lengths_per_batch=0), "lengths_per_batch=0: must be"),
        (
            task("copy", lengths_per_batch=5),
            "batch_size=32: must be a multiple of config.data.lengths_per",
        ),
        (
            task("copy", length=30) | {"train": {"max_position": 59}},
            "max_position=59: must be at least the 60 tokens of a row",
        ),
    ],
)
def test_wrong_settings_are_refused(values, message):
  with pytest.raises(ConfigError, match=message):
    experiment_from_dict(values)


def test_dicts_round_trip():
  config = experiment_from_dict(
      {"seed": 3, "model": {"encoding_options": {"width": 16}}}
  )
  assert experiment_from_dict(experiment_to_dict(config)) == config
  # A list, as in JSON.
  config = experiment_from_dict({"model": {"windows": [0, 128]}})
  assert config.model.windows == (0, 128)
  config = experiment_from_dict({"model": {"encoding_options": {"width": 16}}})
  assert hash(config.model) == hash(ModelConfig(encoding_options={"width": 16}))


def test_a_task_replaces_text():
  config = experiment_from_dict({})
  assert isinstance(config.data, DataConfig)
  values = task("copy", length=30, lengths_per_batch=4) | {
      "seed": 5,
      "model": {"causal": False, "norm": "post", "num_outputs": 8},
      "train": {"max_position": 60, "loss_mean": "row"},
  }
  config = experiment_from_dict(values)
  assert config.data == TaskConfig("copy", 30, 4)
  assert config.data.row_length == 60
  through_json = json.loads(json.dumps(experiment_to_dict(config)))
  assert through_json == experiment_to_dict(config)
  assert experiment_from_dict(through_json) == config
