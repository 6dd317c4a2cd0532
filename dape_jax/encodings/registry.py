"""Registry of encodings by name: "kerple_log", "dape_v2_alibi", ..."""

import dataclasses
import functools
import math
from typing import Any

from dape_jax.encodings import kerple, kerple_power_family, rope_scaling
from dape_jax.encodings.absolute import Learned, Sinusoidal
from dape_jax.encodings.alibi import Alibi
from dape_jax.encodings.base import PositionalEncoding
from dape_jax.encodings.cable import Cable
from dape_jax.encodings.cope import Cope
from dape_jax.encodings.dape import Dape
from dape_jax.encodings.dape_v2 import DapeV2
from dape_jax.encodings.fire import Fire
from dape_jax.encodings.fox import Fox
from dape_jax.encodings.modifiers import LearnedSink, LogN, SoftCap, SSMax
from dape_jax.encodings.nope import Nope
from dape_jax.encodings.rope import Rope
from dape_jax.encodings.sandwich import Sandwich
from dape_jax.encodings.t5 import T5
from dape_jax.encodings.transformer_xl import TransformerXL
from dape_jax.encodings.xpos import XPos
from dape_jax.errors import ConfigError, did_you_mean

_ADDITIVE: dict[str, type[PositionalEncoding]] = {
    "alibi": Alibi,
    "cable": Cable,
    "fire": Fire,
    "fox": Fox,
    "kerple_2_para_bias": kerple_power_family.Kerple2ParaBias,
    "kerple_3_para_bias": kerple_power_family.Kerple3ParaBias,
    "kerple_3_para_log": kerple.Kerple3ParaLog,
    "kerple_log": kerple.KerpleLog,
    "kerple_power": kerple_power_family.KerplePower,
    "sandwich": Sandwich,
    "t5": T5,
    "transformer_xl": TransformerXL,
}
# Bases without a bias that DAPE can wrap.
_UNBIASED: dict[str, type[PositionalEncoding]] = {"nope": Nope, "rope": Rope}
_OTHERS: dict[str, type[PositionalEncoding]] = {
    "cope": Cope,
    "kerple_1_para_wht": kerple_power_family.Kerple1ParaWht,
    "kerple_2_para_wht": kerple_power_family.Kerple2ParaWht,
    "kerple_bias_wht": kerple_power_family.KerpleBiasWht,
    "learned": Learned,
    "rope_dynamic_ntk": rope_scaling.RopeDynamicNtk,
    "rope_ntk": rope_scaling.RopeNtk,
    "rope_pi": rope_scaling.RopePi,
    "rope_yarn": rope_scaling.RopeYarn,
    "sinusoidal": Sinusoidal,
    "xpos": XPos,
}
_BASES = _ADDITIVE | _UNBIASED | _OTHERS


@dataclasses.dataclass(frozen=True)
class _Wrapper:
  """Meaning of a name prefix.

  Attributes:
    cls: wrapper class, or None.
    bases: names of the bases that it can wrap.
    options: options of the wrapper fixed by the prefix.
  """

  cls: type[PositionalEncoding] | None
  bases: tuple[str, ...]
  options: dict[str, Any] = dataclasses.field(default_factory=dict)


_WRAPPERS = {
    "": _Wrapper(None, tuple(_BASES)),
    "dape_": _Wrapper(Dape, (*_ADDITIVE, *_UNBIASED)),
    "dape_static_": _Wrapper(Dape, tuple(_ADDITIVE), {"form": "static"}),
    "dape_v2_": _Wrapper(DapeV2, (*_ADDITIVE, *_UNBIASED)),
}
# Options of every encoding; the defaults have no effect.
_MODIFIERS: dict[str, Any] = {
    "ssmax": False,
    "log_n": 0,
    "sink": False,
    "soft_cap": 0.0,
}


@functools.cache
def _names() -> dict[str, tuple[_Wrapper, str]]:
  return {
      prefix + base: (wrapper, base)
      for prefix, wrapper in _WRAPPERS.items()
      for base in wrapper.bases
  }


def names() -> tuple[str, ...]:
  """Returns all registered names, sorted."""
  return tuple(sorted(_names()))


def split_name(name: str) -> tuple[type[PositionalEncoding] | None, str]:
  """Returns the wrapper class (Dape, DapeV2 or None) and the base's name.

  Raises:
    ConfigError: the name is unknown; the message suggests the nearest one.
  """
  wrapper, base = _split(name)
  return wrapper.cls, base


def _split(name: str) -> tuple[_Wrapper, str]:
  if name not in _names():
    raise ConfigError(
        f'unknown encoding "{name}".{did_you_mean(name, names())}'
    )
  return _names()[name]


def base_class(name: str) -> type[PositionalEncoding]:
  """Returns the class of a name's base encoding."""
  return _BASES[_split(name)[1]]


def _fields(cls: type | None) -> dict[str, Any]:
  if cls is None:
    return {}
  hidden = ("num_heads", "base", "parent", "name")
  return {
      field.name: field.default
      for field in dataclasses.fields(cls)
      if field.name not in hidden
  }


def _base_defaults(wrapper: _Wrapper, base: str) -> dict[str, Any]:
  defaults = _fields(_BASES[base])
  if wrapper.cls is not None and base == "fire":
    defaults["negative_slope"] = 0.01  # as in DAPE-FIRE's released code
  return defaults


def _wrapper_defaults(wrapper: _Wrapper) -> dict[str, Any]:
  defaults = _fields(wrapper.cls)
  return {k: v for k, v in defaults.items() if k not in wrapper.options}


def options(name: str) -> dict[str, Any]:
  """Returns the options of `make(name, ...)` with their default values.

  Raises:
    ConfigError: the name is unknown; the message suggests the nearest one.
  """
  wrapper, base = _split(name)
  return _base_defaults(wrapper, base) | _wrapper_defaults(wrapper) | _MODIFIERS


def _check_type(key: str, value: Any, expected: type) -> None:
  fits = isinstance(value, (int, float) if expected is float else expected)
  if expected is float and fits:
    fits = math.isfinite(value)
  if not fits or (isinstance(value, bool) and expected is not bool):
    what = "a finite number" if expected is float else expected.__name__
    raise ConfigError(f"{key}={value!r}: must be {what}.")


def make(name: str, *, num_heads: int, **overrides: Any) -> PositionalEncoding:
  """Returns the Linen module of a registered encoding.

  Args:
    name: one of `names()`: a base such as "kerple_log", "dape_<base>",
      "dape_static_<base>" (the non-adaptive control) or "dape_v2_<base>".
    num_heads: number of query heads N.
    **overrides: options of this encoding, see `options(name)` and the class
      docstrings. Every encoding also has ssmax (bool), log_n (training length
      in tokens, 0 disables it), sink (bool, learned) and soft_cap (bound of the
      logits, 0 disables it), see `modifiers`, and the Linen arguments parent
      and name.

  Raises:
    ConfigError: the name or an option is unknown (the message suggests the
      nearest one), or a value is out of range.
  """
  wrapper, base = _split(name)
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
  values = valid | overrides
  layers = []
  if wrapper.cls is not None:
    own = {k: values[k] for k in _wrapper_defaults(wrapper)}
    layers.append(functools.partial(wrapper.cls, **own, **wrapper.options))
  layers += _modifiers(values)
  # parent=None makes a base a child of its wrapper, also inside a module.
  linens = [{"parent": None}] * len(layers) + [linen]
  own = {k: values[k] for k in _fields(_BASES[base])}
  module = _BASES[base](num_heads=num_heads, **own, **linens[0])
  for layer, arguments in zip(layers, linens[1:]):
    module = layer(base=module, **arguments)
  return module


def _modifiers(values: dict[str, Any]) -> list[Any]:
  """Returns the modifiers around an encoding, innermost first."""
  layers = []
  if values["ssmax"] and values["log_n"]:
    raise ConfigError(
        f"ssmax=True and log_n={values['log_n']}: both scale the scores by the"
        " number of keys; choose one."
    )
  if values["log_n"] < 0 or values["log_n"] == 1:
    raise ConfigError(
        f"log_n={values['log_n']}: must be a training length of 2 or more, or 0"
        " for none."
    )
  if values["soft_cap"] < 0:
    raise ConfigError(
        f"soft_cap={values['soft_cap']}: must be above 0, or 0 for none."
    )
  if values["ssmax"]:
    layers.append(SSMax)
  if values["log_n"]:
    layers.append(functools.partial(LogN, train_length=values["log_n"]))
  if values["sink"]:
    layers.append(LearnedSink)
  if values["soft_cap"]:
    layers.append(functools.partial(SoftCap, cap=values["soft_cap"]))
  return layers
