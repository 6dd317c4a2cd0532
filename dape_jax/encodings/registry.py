"""Names of encodings: "kerple_log", "dape_fire", "dape_v2_alibi", ..."""

import dataclasses
import math
from typing import Any

from dape_jax.encodings.alibi import Alibi
from dape_jax.encodings.base import PositionalEncoding
from dape_jax.encodings.dape import Dape, DapeV2
from dape_jax.encodings.fire import Fire
from dape_jax.encodings.kerple import KerpleLog
from dape_jax.encodings.nope import Nope
from dape_jax.encodings.rope import Rope
from dape_jax.errors import ConfigError, did_you_mean

_BASES: dict[str, type[PositionalEncoding]] = {
    "alibi": Alibi,
    "fire": Fire,
    "kerple_log": KerpleLog,
    "nope": Nope,
    "rope": Rope,
}
# Longest prefix first: "dape_v2_fire" is not DAPE around "v2_fire".
_WRAPPERS: dict[str, type[PositionalEncoding]] = {
    "dape_v2_": DapeV2,
    "dape_": Dape,
}


def names() -> tuple[str, ...]:
  """Returns all registered names, sorted."""
  wrapped = [prefix + base for prefix in _WRAPPERS for base in _BASES]
  return tuple(sorted([*_BASES, *wrapped]))


def split_name(name: str) -> tuple[type[PositionalEncoding] | None, str]:
  """Returns (Dape, DapeV2 or None, name of the base).

  Raises:
    ConfigError: the name is unknown; the nearest valid one is given.
  """
  if name not in names():
    raise ConfigError(
        f'unknown encoding "{name}".{did_you_mean(name, names())}'
    )
  for prefix, wrapper in _WRAPPERS.items():
    if name.startswith(prefix):
      return wrapper, name.removeprefix(prefix)
  return None, name


def _fields(cls: type | None) -> dict[str, Any]:
  if cls is None:
    return {}
  hidden = ("num_heads", "base", "parent", "name")
  return {
      field.name: field.default
      for field in dataclasses.fields(cls)
      if field.name not in hidden
  }


def _base_defaults(wrapper: type | None, base: str) -> dict[str, Any]:
  defaults = _fields(_BASES[base])
  if wrapper is not None and base == "fire":
    defaults["negative_slope"] = 0.01  # as in DAPE-FIRE's released code
  return defaults


def options(name: str) -> dict[str, Any]:
  """Returns the options of `make(name, ...)` with their default values.

  Raises:
    ConfigError: the name is unknown; the nearest valid one is given.
  """
  wrapper, base = split_name(name)
  return _base_defaults(wrapper, base) | _fields(wrapper)


def _check_type(key: str, value: Any, expected: type) -> None:
  fits = isinstance(value, (int, float) if expected is float else expected)
  if expected is float and fits:
    fits = math.isfinite(value)
  if not fits or isinstance(value, bool):
    what = "a finite number" if expected is float else expected.__name__
    raise ConfigError(f"{key}={value!r}: must be {what}.")


def make(name: str, *, num_heads: int, **overrides: Any) -> PositionalEncoding:
  """Returns the Linen module of a registered encoding.

  Args:
    name: nope, alibi, kerple_log, fire, rope, and dape_<base>, dape_v2_<base>.
    num_heads: query heads N.
    **overrides: options of this encoding, see `options(name)`: width (score
      network), kernel_size and edge (V2), threshold (FIRE's L0 in tokens),
      fire_width, fire_layers and negative_slope (FIRE), rope_theta (RoPE); and
      parent and name, as of every Linen module.

  Raises:
    ConfigError: unknown name, option that this encoding does not have, or a
      value out of range; the message names the nearest valid one.
  """
  wrapper, base = split_name(name)
  valid = options(name)
  linen = {k: overrides.pop(k) for k in ("parent", "name") if k in overrides}
  for key in overrides:
    if key not in valid:
      raise ConfigError(
          f'encoding "{name}" has no option "{key}".{did_you_mean(key, valid)}'
      )
    _check_type(key, overrides[key], type(valid[key]))
  if num_heads < 1:
    raise ConfigError(f"num_heads={num_heads}: must be 1 or more.")
  values = _base_defaults(wrapper, base) | overrides
  base_class = _BASES[base]
  own = {k: values[k] for k in _fields(base_class)}
  if wrapper is None:
    return base_class(num_heads=num_heads, **own, **linen)
  # Without a parent the base belongs to the wrapper, wherever this is called.
  module = base_class(num_heads=num_heads, parent=None, **own)
  outer = {k: v for k, v in overrides.items() if k in _fields(wrapper)}
  return wrapper(base=module, **outer, **linen)
