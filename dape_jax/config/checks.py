"""Checks of settings; every message names the field."""

import math
from typing import Any

from dape_jax.errors import ConfigError, did_you_mean


def require(condition: bool, field: str, value: Any, fix: str) -> None:
  if not condition:
    raise ConfigError(f"config.{field}={value!r}: {fix}")


def require_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
  if value not in choices:
    raise ConfigError(
        f"config.{field}={value!r} is unknown.{did_you_mean(value, choices)}"
    )


def require_finite(section: str, config: Any, *names: str) -> None:
  for name in names:
    value = getattr(config, name)
    require(math.isfinite(value), f"{section}.{name}", value, "not finite.")


def require_positive(section: str, config: Any, *names: str) -> None:
  for name in names:
    value = getattr(config, name)
    require(value > 0, f"{section}.{name}", value, "must be greater than 0.")


def require_not_negative(section: str, config: Any, *names: str) -> None:
  for name in names:
    value = getattr(config, name)
    require(value >= 0, f"{section}.{name}", value, "must be 0 or more.")
