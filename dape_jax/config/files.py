"""Helpers for config files: arguments after the colon, and default settings."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from dape_jax import cli, encodings
from dape_jax.config.data import DataConfig, TaskConfig
from dape_jax.config.experiment import MeshConfig, OptimizerConfig, TrainConfig
from dape_jax.config.model import ModelConfig
from dape_jax.errors import ConfigError, did_you_mean


def parse_arguments(text: str, defaults: dict[str, str]) -> dict[str, str]:
  """Parses the arguments of a config file, "name=value,name=value".

  A part without "=" continues the value before it: "encoding=rope,nope" is one
  argument.

  Args:
    text: the text after the colon.
    defaults: every valid argument with its default.

  Raises:
    ConfigError: an argument is unknown.
  """
  values = dict(defaults)
  name = None
  for part in text.split(",") if text else []:
    before, equals, value = part.partition("=")
    if equals:
      name = before.strip()
      if name not in defaults:
        raise ConfigError(
            f'"{name}" is not an argument of this config'
            f" file.{did_you_mean(name, defaults)}"
        )
      values[name] = value.strip()
    elif name is None:
      raise ConfigError(
          f'"{part}" is not name=value; arguments:' f" {', '.join(defaults)}."
      )
    else:
      values[name] += f",{part.strip()}"
  return values


def choice(
    arguments: Mapping[str, str], name: str, choices: Sequence[str]
) -> str:
  """Returns the argument called `name`, one of `choices`.

  Raises:
    ConfigError: it is not one of them.
  """
  value = arguments[name]
  if value not in choices:
    raise ConfigError(
        f"{name}={value} is unknown.{did_you_mean(value, choices)}"
    )
  return value


def whole_number(arguments: Mapping[str, str], name: str) -> int:
  """Returns the argument called `name` as a whole number, 0 or more.

  Raises:
    ConfigError: it is not one.
  """
  value = arguments[name]
  with contextlib.suppress(ValueError):
    if (number := cli.whole_number(value)) >= 0:
      return number
  raise ConfigError(f"{name}={value} is not a whole number of at least 0.")


def encoding_options(encoding: str, train_length: int) -> dict[str, Any]:
  """Returns the default options of an encoding, for flags to override.

  Args:
    encoding: a name or a comma-separated list. For a list, returns the first
      one's options whose defaults agree with those of the others; each encoding
      keeps its own defaults for the rest.
    train_length: training length in tokens, for encodings with that option.
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
  """Returns a complete config, for a config file's `get_config` to return.

  Args:
    model, data, optimizer, train, mesh: settings that differ from the defaults
      of `ModelConfig`, `DataConfig` (`TaskConfig` if data has "task"),
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
