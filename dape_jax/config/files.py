"""What config files share: their arguments, and the settings they leave alone."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from dape_jax import encodings
from dape_jax.config.data import DataConfig, TaskConfig
from dape_jax.config.experiment import OptimizerConfig, TrainConfig
from dape_jax.config.mesh import MeshConfig
from dape_jax.config.model import ModelConfig
from dape_jax.errors import ConfigError, did_you_mean


def parse_arguments(text: str, defaults: dict[str, str]) -> dict[str, str]:
  """Returns the arguments behind a config file's colon, "name=value,name=value".

  A part without "=" belongs to the value before it, so that
  "encoding=rope,nope" is one argument.

  Args:
    text: what stands behind the colon.
    defaults: of all arguments there are.

  Raises:
    ConfigError: an argument that there is not.
  """
  values = dict(defaults)
  name = None
  for part in text.split(",") if text else []:
    before, equals, value = part.partition("=")
    if equals:
      name = before.strip()
      if name not in defaults:
        raise ConfigError(
            f'--config: "{name}" is no argument of this config'
            f" file.{did_you_mean(name, defaults)}"
        )
      values[name] = value.strip()
    elif name is None:
      raise ConfigError(
          f'--config: "{part}" is not name=value; arguments:'
          f" {', '.join(defaults)}."
      )
    else:
      values[name] += f",{part.strip()}"
  return values


def choice(
    arguments: Mapping[str, str], name: str, choices: Sequence[str]
) -> str:
  """Returns the argument called `name`, one of `choices`.

  Raises:
    ConfigError: it is none of them.
  """
  value = arguments[name]
  if value not in choices:
    raise ConfigError(
        f"--config: {name}={value} is unknown.{did_you_mean(value, choices)}"
    )
  return value


def whole_number(arguments: Mapping[str, str], name: str) -> int:
  """Returns the argument called `name`, a number 0, 1, 2, ...

  Raises:
    ConfigError: it is none.
  """
  value = arguments[name]
  if not value.isdecimal():
    raise ConfigError(f"--config: {name}={value} is not a whole number from 0.")
  return int(value)


def encoding_options(encoding: str, train_length: int) -> dict[str, Any]:
  """Returns the default options of an encoding, to be changed by flags.

  Args:
    encoding: name, or several joined by commas: then the options with equal
      defaults; each encoding has its own of the rest.
    train_length: tokens, for encodings that have it as an option.
  """
  names = [name.strip() for name in encoding.split(",")]
  defaults = [encodings.options(name) for name in names]
  options = {
      option: value
      for option, value in defaults[0].items()
      if all(other.get(option, value) == value for other in defaults)
  }
  if "train_length" in options:
    options["train_length"] = train_length
  return options


def _with_defaults(cls: type, given: Mapping[str, Any]) -> dict[str, Any]:
  defaults = {
      field.name: (
          field.default_factory()
          if field.default is dataclasses.MISSING
          else field.default
      )
      for field in dataclasses.fields(cls)
      if field.name not in given
  }
  return {**defaults, **given}


def all_settings(
    *,
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    optimizer: Mapping[str, Any],
    train: Mapping[str, Any],
    mesh: Mapping[str, Any] | None = None,
) -> ml_collections.ConfigDict:
  """Returns what `get_config` of a config file returns: every setting there is.

  So that flags can change each of them.

  Args:
    model, data, optimizer, train, mesh: settings that are not the defaults of
      `ModelConfig`, `DataConfig` (`TaskConfig` if data has "task"),
      `OptimizerConfig`, `TrainConfig` and `MeshConfig`.
  """
  config = ml_collections.ConfigDict()
  config.seed = 0
  config.model = _with_defaults(ModelConfig, model)
  config.data = _with_defaults(
      TaskConfig if "task" in data else DataConfig, data
  )
  config.optimizer = _with_defaults(OptimizerConfig, optimizer)
  config.train = _with_defaults(TrainConfig, train)
  config.mesh = _with_defaults(MeshConfig, mesh or {})
  return config
