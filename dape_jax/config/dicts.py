"""Experiments as nested dicts: of config files, and stored in checkpoints."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from dape_jax.config.data import DataConfig, TaskConfig
from dape_jax.config.experiment import (
    ExperimentConfig,
    OptimizerConfig,
    TrainConfig,
)
from dape_jax.config.mesh import MeshConfig
from dape_jax.config.model import ModelConfig
from dape_jax.errors import ConfigError, did_you_mean

_SECTIONS = {
    "model": ModelConfig,
    "data": DataConfig,
    "optimizer": OptimizerConfig,
    "train": TrainConfig,
    "mesh": MeshConfig,
}


def _section_from_dict(name: str, cls: type, values: Any) -> Any:
  if not isinstance(values, Mapping):
    raise ConfigError(
        f"config.{name}={values!r}: must be a section of settings."
    )
  fields = {f.name: f for f in dataclasses.fields(cls)}
  for key, value in values.items():
    if key not in fields:
      raise ConfigError(
          f"config.{name}.{key} is not a setting.{did_you_mean(key, fields)}"
      )
    if key == "encoding_options" and not isinstance(value, Mapping):
      raise ConfigError(f"config.{name}.{key}={value!r}: must be a mapping.")
    expected = fields[key].type
    if expected is float and type(value) is int:
      continue
    if expected in (int, float, str, bool) and type(value) is not expected:
      raise ConfigError(
          f"config.{name}.{key}={value!r} is of type {type(value).__name__};"
          f" it must be of type {expected.__name__}."
      )
  return cls(**values)


def experiment_from_dict(values: Mapping[str, Any]) -> ExperimentConfig:
  """Returns the validated experiment of a ConfigDict's or JSON file's dict.

  Args:
    values: nested mapping with the sections model, data, optimizer, train and
      mesh, and `seed`. Left-out settings take their defaults. The section data is
      that of a TaskConfig if it has "task", and else of a DataConfig.

  Raises:
    ConfigError: a setting is unknown (the nearest valid name is given), of the
      wrong type or out of range.
  """
  valid = [*_SECTIONS, "seed"]
  for key in values:
    if key not in valid:
      raise ConfigError(
          f"config.{key} is not a setting.{did_you_mean(key, valid)}"
      )
  classes = dict(_SECTIONS)
  data = values.get("data")
  if isinstance(data, Mapping) and "task" in data:
    classes["data"] = TaskConfig
  sections = {
      name: _section_from_dict(name, cls, values.get(name, {}))
      for name, cls in classes.items()
  }
  return ExperimentConfig(seed=values.get("seed", 0), **sections)


def experiment_to_dict(config: ExperimentConfig) -> dict[str, Any]:
  """Returns the nested dict that `experiment_from_dict` reads back.

  Of what JSON has, so that a dict read from a file is the same.
  """
  values = dataclasses.asdict(
      dataclasses.replace(
          config,
          model=dataclasses.replace(
              config.model,
              encoding_options=dict(config.model.encoding_options),
          ),
      )
  )
  values["model"]["windows"] = list(config.model.windows)
  if isinstance(config.data, DataConfig):
    values["data"]["weights"] = list(config.data.weights)
  return values
