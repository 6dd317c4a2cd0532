"""Config files: their arguments and validity."""

import importlib.util
import pathlib

import pytest

from dape_jax import encodings
from dape_jax.config import files as config_files
from dape_jax.config.dicts import experiment_from_dict
from dape_jax.data import tasks
from dape_jax.errors import ConfigError

FOLDER = pathlib.Path(__file__).parents[2] / "configs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


def load(name, *arguments):
  """Returns the validated experiment of a file in configs/."""
  spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return experiment_from_dict(module.get_config(*arguments).to_dict())


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", {}),
        ("task=copy", {"task": "copy"}),
        (" task = copy , encoding= nope", {"task": "copy", "encoding": "nope"}),
        ("encoding=rope,nope", {"encoding": "rope,nope"}),
        (
            "encoding=rope, nope,task=copy",
            {"encoding": "rope,nope", "task": "copy"},
        ),
        ("task=a,task=b", {"task": "b"}),
        ("encoding=a=b", {"encoding": "a=b"}),
    ],
)
def test_arguments(text, expected):
  defaults = {"task": "even_pairs", "encoding": "rope"}
  assert config_files.parse_arguments(text, defaults) == defaults | expected
  assert defaults == {"task": "even_pairs", "encoding": "rope"}


@pytest.mark.parametrize(
    "text, message",
    [
        ("tsak=copy", '"tsak" is not an argument.*Did you mean "task"'),
        ("copy", '"copy" is not name=value; arguments: task, encoding'),
        (",task=copy", "is not name=value"),
    ],
)
def test_wrong_arguments_are_refused(text, message):
  with pytest.raises(ConfigError, match=message):
    config_files.parse_arguments(text, {"task": "", "encoding": ""})


def test_options_of_one_encoding():
  options = config_files.encoding_options("dape_kerple_log", 40)
  assert options == encodings.options("dape_kerple_log")


@pytest.mark.parametrize("name", encodings.names())
def test_encodings_take_the_training_length(name):
  options = config_files.encoding_options(name, 77)
  assert options.keys() == encodings.options(name).keys()
  assert options.get("train_length", 77) == 77


def test_options_of_several_encodings_are_the_common_ones():
  options = config_files.encoding_options("rope, fire", 40)
  defaults = [encodings.options(name) for name in ("rope", "fire")]
  for name, value in options.items():
    assert all(other.get(name, value) == value for other in defaults)
  assert options["rope_theta"] == defaults[0]["rope_theta"]
  with pytest.raises(ConfigError, match='Did you mean "nope"'):
    config_files.encoding_options("rope,noppe", 40)


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_valid(name):
  experiment = load(name)
  assert experiment.seed == 0
  assert experiment.model.encoding == "dape_kerple_log"


@pytest.mark.parametrize("name", NAMES)
def test_unknown_encodings_are_one_line(name):
  has_names = name in ("che", "length_tasks", "lm")
  argument = "encoding=ropee" if has_names else "ropee"
  with pytest.raises(ConfigError, match='Did you mean "rope"') as error:
    load(name, argument)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("size", ["125m", "350m", "1.3b", "2.7b", "6.7b"])
@pytest.mark.parametrize("recipe", ["dape", "kerple", "fire"])
def test_models_of_the_papers(size, recipe):
  experiment = load(
      "lm", f"size={size},recipe={recipe},encoding=fire,length=128"
  )
  model = experiment.model
  body = 12 * model.num_layers * model.width**2
  head = 2 * model.vocab_size * model.width
  sizes = {"125m": 162, "350m": 405, "1.3b": 1414, "2.7b": 2774, "6.7b": 6855}
  assert (body + head) / 1e6 == pytest.approx(sizes[size], abs=1)
  assert experiment.optimizer.warmup_steps == experiment.train.steps // 100
  is_kerple = recipe == "kerple"
  assert (experiment.optimizer.weight_decay == 0) == is_kerple
  assert (experiment.optimizer.final_learning_rate == 0) == is_kerple


@pytest.mark.parametrize("task", tasks.TASKS)
@pytest.mark.parametrize("name", ["che", "length_tasks"])
def test_every_task_is_valid(name, task):
  # One encoding per layer.
  encoding = "rope,nope,rope,nope,nope" if name == "che" else "rope,nope"
  experiment = load(name, f"task={task},encoding={encoding}")
  assert experiment.data.task == task
  assert experiment.model.encoding == encoding
  assert experiment.model.vocab_size == tasks.make(task).vocab_size
  assert experiment.model.num_outputs == tasks.make(task).num_outputs
  if name == "length_tasks":
    assert experiment.model.causal == (task not in tasks.CHE_TASKS)


def test_model_of_the_chomsky_hierarchy():
  experiment = load("che", "form=decoder,max_position=2048")
  assert experiment.model.causal
  assert experiment.train.max_position == 2048
  assert not load("che").model.causal
  assert load("che", "form=encoder").train.max_position == 0


@pytest.mark.parametrize(
    "name, argument, message",
    [
        ("lm", "size=125", 'Did you mean "125m"'),
        ("lm", "length=long", "length=long is not a whole number"),
        ("lm", "recipe=adam", "recipe=adam is unknown"),
        ("che", "task=copyy", "task 'copyy' is unknown. Did you mean \"copy\""),
        ("length_tasks", "task=cpoy", "task 'cpoy' is unknown"),
        ("length_tasks", "form=encoder", '"form" is not an argument'),
        (
            "che",
            "form=encodr",
            'form=encodr is unknown. Did you mean "encoder"',
        ),
        ("che", "form=", "form= is unknown.* Valid: decoder, encoder"),
        ("che", "max_position=2k", "max_position=2k is not a whole number"),
        ("che", "max_position=-1", "max_position=-1 is not a whole number"),
        ("che", "max_position=", "max_position= is not a whole number"),
        ("che", "max_position=8", "config.train.max_position=8: .* 41 tokens"),
    ],
)
def test_wrong_arguments_of_files_are_one_line(name, argument, message):
  with pytest.raises(ConfigError, match=message) as error:
    load(name, argument)
  assert "\n" not in str(error.value)
