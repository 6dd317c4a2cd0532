"""Dataclass fields with a range or choices; errors name the field."""

import dataclasses
import math
from typing import Any

from dape_jax.errors import ConfigError, did_you_mean


def positive(default: float) -> Any:
  """Returns a field that must be greater than 0."""
  return _field(default, lambda value: value > 0, "must be greater than 0.")


def not_negative(default: float) -> Any:
  """Returns a field that must be 0 or more."""
  return _field(default, lambda value: value >= 0, "must be 0 or more.")


def fraction(default: float) -> Any:
  """Returns a field that must be in [0, 1)."""
  return _field(default, lambda value: 0 <= value < 1, "must be in [0, 1).")


def one_of(default: str, *others: str) -> Any:
  """Returns a field with the given choices."""
  return dataclasses.field(
      default=default, metadata={"choices": (default, *others)}
  )


def _field(default: float, in_range, fix: str) -> Any:
  return dataclasses.field(default=default, metadata={"range": (in_range, fix)})


def check_fields(section: str, config: Any) -> None:
  """Raises a ConfigError for a value outside its field's range or choices."""
  for field in dataclasses.fields(config):
    name, value = f"{section}.{field.name}", getattr(config, field.name)
    if field.type is float:
      require(math.isfinite(value), name, value, "must be finite.")
    if "range" in field.metadata:
      in_range, fix = field.metadata["range"]
      require(in_range(value), name, value, fix)
    if "choices" in field.metadata:
      require_choice(name, value, field.metadata["choices"])


def require(condition: bool, field: str, value: Any, fix: str) -> None:
  """Raises a ConfigError with the field and the fix if `condition` is false."""
  if not condition:
    raise ConfigError(f"config.{field}={value!r}: {fix}")


def require_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
  """Raises a ConfigError with the closest choice if `value` is not a choice."""
  if value not in choices:
    raise ConfigError(
        f"config.{field}={value!r} is unknown.{did_you_mean(value, choices)}"
    )
