"""Converts experiments to and from nested dicts."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import ml_collections

from dape_jax.config.data import DataConfig, TaskConfig
from dape_jax.config.experiment import (
    ExperimentConfig,
    MeshConfig,
    OptimizerConfig,
    TrainConfig,
)
from dape_jax.config.model import ModelConfig
from dape_jax.errors import ConfigError, did_you_mean

_SECTIONS = {
    "model": ModelConfig,
    "data": DataConfig,
    "optimizer": OptimizerConfig,
    "train": TrainConfig,
    "mesh": MeshConfig,
}


def sections_of(values: Mapping[str, Any]) -> dict[str, type]:
  """Returns the class of each section; TaskConfig for data with a task."""
  data = values.get("data")
  if isinstance(data, Mapping | ml_collections.ConfigDict) and "task" in data:
    return _SECTIONS | {"data": TaskConfig}
  return _SECTIONS


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
  """Returns the validated experiment described by a nested dict.

  Args:
    values: the sections model, data, optimizer, train and mesh, and `seed`.
      Missing settings take their defaults. The data section becomes a
      TaskConfig if it has "task", and a DataConfig otherwise.

  Raises:
    ConfigError: a setting is unknown (the message names the nearest one), has
      the wrong type or is out of range.
  """
  valid = [*_SECTIONS, "seed"]
  for key in values:
    if key not in valid:
      raise ConfigError(
          f"config.{key} is not a setting.{did_you_mean(key, valid)}"
      )
  sections = {
      name: _section_from_dict(name, cls, values.get(name, {}))
      for name, cls in sections_of(values).items()
  }
  return ExperimentConfig(seed=values.get("seed", 0), **sections)


def experiment_to_dict(config: ExperimentConfig) -> dict[str, Any]:
  """Returns an experiment as a nested dict; inverse of `experiment_from_dict`.

  Contains only JSON types, so that it survives a round trip through a file.
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
