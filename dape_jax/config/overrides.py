"""The --config flag, and the flags that override single settings.

  --config=FILE[:ARGUMENTS] --config.SECTION.SETTING=VALUE ...

Values have the type of the setting:

- whole numbers: 1000, 1_000 or 1e3; numbers: 0.1, 1e-3 or 3;
- booleans: true, false, yes, no, 1 or 0 in any case, or the flag alone
  (--config.mesh.ring, --noconfig.mesh.ring);
- text: taken literally; surrounding quotes are optional;
- tuples: 0.7,0.3 or (0.7,0.3) or [0.7,0.3]; a single 5 is (5,); () is empty;
- the encoding's options: --config.model.encoding_options.width=64 changes one,
  and --config.model.encoding_options="{'width': 64}" (Python or JSON) replaces
  all; {} restores the encoding's defaults.

If a flag is repeated, the last one wins.
"""

import ast
import contextlib
import dataclasses
import difflib
import importlib.util
import json
import pathlib
import traceback
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import ml_collections
from absl import flags

from dape_jax import cli, encodings
from dape_jax.config.dicts import experiment_from_dict, sections_of
from dape_jax.config.experiment import ExperimentConfig
from dape_jax.errors import ConfigError, did_you_mean

flags.disclaim_key_flags()  # The flag belongs to the command that defines it.

_OPTIONS = "model.encoding_options"
_TRUE = ("true", "t", "yes", "y", "1")
_FALSE = ("false", "f", "no", "n", "0")


def define_config_flag() -> flags.FlagHolder[str]:
  """Defines --config and its overrides, for `experiment_from_flag`."""
  return flags.DEFINE_flag(
      cli.OverridableFlag(
          parser=flags.ArgumentParser(),
          serializer=flags.ArgumentSerializer(),
          name="config",
          default=None,
          help_string=(
              "Config file that defines get_config(), as FILE[:ARGUMENTS];"
              " --config.SECTION.SETTING=VALUE overrides a setting (see"
              " dape_jax/config)."
          ),
      )
  )


def experiment_from_flag(flag: flags.FlagHolder[str]) -> ExperimentConfig:
  """Returns the validated experiment from --config and its overrides.

  Raises:
    ConfigError: the file cannot be loaded, or a setting is wrong.
  """
  config = load_config(flag.value)
  apply_overrides(config, flags.FLAGS[flag.name].overrides)
  return experiment_from_dict(config.to_dict())


def load_config(value: str) -> ml_collections.ConfigDict:
  """Runs a config file and returns the config from its `get_config`.

  Args:
    value: the file, and its argument after a colon.

  Raises:
    ConfigError: the file does not exist or raises an error.
  """
  path, colon, argument = value.partition(":")
  if not pathlib.Path(path).is_file():
    raise ConfigError(f"--config={path} does not exist.")
  spec = importlib.util.spec_from_file_location("config_file", path)
  if spec is None:
    raise ConfigError(f"--config={path} is not a Python file.")
  module = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(module)
    config = module.get_config(*([argument] if colon else []))
  except ConfigError as e:
    raise ConfigError(f"--config={value}: {e}") from e
  except Exception as e:
    frame = traceback.extract_tb(e.__traceback__)[-1]
    raise ConfigError(
        f"--config={value}: {type(e).__name__}: {e} ({frame.filename}, line"
        f" {frame.lineno})"
    ) from e
  if not isinstance(config, ml_collections.ConfigDict):
    raise ConfigError(
        f"--config={value}: get_config() must return an"
        " ml_collections.ConfigDict."
    )
  return config


def apply_overrides(
    config: ml_collections.ConfigDict, overrides: Iterable[cli.Override]
) -> None:
  """Changes settings of a config in place.

  Args:
    config: the config.
    overrides: in the order given.

  Raises:
    ConfigError: a setting does not exist, or a value has the wrong type. The
      message starts with the flag as typed.
  """
  overrides = list(overrides)
  for i, override in enumerate(overrides):
    for earlier in overrides[:i]:
      if earlier.path.startswith(f"{override.path}."):
        raise ConfigError(
            f"{override.typed}: would replace {earlier.typed}, given before"
            " it; put it first."
        )
  # The encoding determines the valid options.
  for override in sorted(overrides, key=lambda o: o.path != "model.encoding"):
    try:
      _apply(config, override)
    except ValueError as e:
      raise ConfigError(f"{override.typed}: {e}") from e


def _apply(config: ml_collections.ConfigDict, override: cli.Override) -> None:
  types = _setting_types(config)
  path, text = override.path, override.text
  if path not in types:
    raise _unknown_setting(path, types)
  if types[path] is bool and text is None:
    text = str(not override.negated)
  elif override.negated:
    raise ConfigError(f"--noconfig.{path} is for booleans, without a value.")
  elif text is None:
    raise ConfigError(f"config.{path} needs a value: {override.typed}=VALUE.")
  value = _setting_value(path, text, types)
  if types[path] is dict:
    value = {
        name: _setting_value(f"{path}.{name}", item, types)
        for name, item in value.items()
    }
  *parents, name = path.split(".")
  section = config
  for parent in parents:
    if section.get(parent) is None:
      with section.unlocked():
        section[parent] = ml_collections.ConfigDict()
    section = section[parent]
  with section.unlocked(), section.ignore_type():
    section[name] = value
  if path == "model.encoding":
    _setting_types(config)  # Refuses an unknown encoding.


def _setting_value(path: str, value: Any, types: Mapping[str, Any]) -> Any:
  """Parses a setting's value, given as text or as an item of a dictionary."""
  if path not in types:
    raise _unknown_setting(path, types)
  try:
    return _parse(value if isinstance(value, str) else repr(value), types[path])
  except ValueError as e:
    raise ConfigError(f"config.{path} {e}.") from e


def _parse(text: str, kind: Any) -> Any:
  """Parses the text of a flag as a value of type `kind`."""
  lower = text.strip().lower()
  if kind is str:
    if text.strip() == "None":
      raise ValueError("must be text, got None; leave the value empty for none")
    if text[:1] in ("'", '"') and text[1:] and text[-1] == text[0]:
      return text[1:-1]
    return text
  if kind is bool:
    if lower not in _TRUE + _FALSE:
      raise ValueError(f"must be true or false, got {text!r}")
    return lower in _TRUE
  if kind is int:
    return cli.whole_number(text)
  if kind is float:
    try:
      return float(text)
    except ValueError as e:
      raise ValueError(f"must be a number, got {text!r}") from e
  if kind is dict:
    return _parse_mapping(text)
  whole = typing.get_args(kind)[0] is int
  example = "(0,128), 0,128 or 128" if whole else "(0.7,0.3) or 0.7,0.3"
  inside = lower
  if (lower[:1], lower[-1:]) in (("(", ")"), ("[", "]")):
    inside = lower[1:-1].strip()
    if not inside:
      return ()
  try:
    # A single number may end with a comma.
    items = inside.removesuffix(",").split(",")
    return tuple(
        _parse(item.strip(), typing.get_args(kind)[0]) for item in items
    )
  except ValueError as e:
    raise ValueError(
        f"must be {'whole ' * whole}numbers such as {example}, got {text!r}"
    ) from e


def _parse_mapping(text: str) -> dict[str, Any]:
  value = None
  for load in json.loads, ast.literal_eval:
    with contextlib.suppress(ValueError, SyntaxError):
      value = load(text)
      break
  if not isinstance(value, dict) or not all(isinstance(k, str) for k in value):
    raise ValueError(
        f"must be a dictionary such as {{'width': 64}}, got {text!r}"
    )
  return value


def _setting_types(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the type of every setting by path: {"train.steps": int, ...}."""
  types = {"seed": int}
  for section, cls in sections_of(config).items():
    for field in dataclasses.fields(cls):
      types[f"{section}.{field.name}"] = field.type
  types[_OPTIONS] = dict
  model = config.get("model") or {}
  default = sections_of(config)["model"].encoding
  for name in model.get("encoding", default).split(","):
    for option, value in encodings.options(name.strip()).items():
      types[f"{_OPTIONS}.{option}"] = type(value)
  return types


def _unknown_setting(path: str, types: Mapping[str, Any]) -> ConfigError:
  """Returns the error for an unknown path, with the closest setting."""
  sections = {p.rpartition(".")[0] for p in types}

  def names_in(section):
    prefix = f"{section}." if section else ""
    names = (p.removeprefix(prefix) for p in types if p.startswith(prefix))
    return sorted({name.partition(".")[0] for name in names})

  if path in sections:
    return ConfigError(
        f"{f'config.{path}'.rstrip('.')} is a section; set one of its settings:"
        f" {', '.join(names_in(path))}."
    )
  words = path.split(".")
  parts = [".".join(words[:i]) for i in range(len(words))]
  known = max((x for x in parts if x in sections or x in types), key=len)
  if known not in sections:
    return ConfigError(
        f"config.{known} is a setting, not a section; config.{path} does not"
        " exist."
    )
  missing = words[parts.index(known)]
  where = f"config.{known}" if known else "config"
  what = f"{where}.{missing} is not a setting"
  hint = did_you_mean(missing, names_in(known))
  elsewhere = {}
  for other in types:
    elsewhere.setdefault(other.rpartition(".")[2], []).append(f"config.{other}")
  near = [missing] if missing in elsewhere else []
  if not near and "Did you mean" not in hint:
    near = difflib.get_close_matches(missing, elsewhere, 1, 0.8)
  if near and missing == words[-1]:
    valid = hint.partition(" Valid:")[2]
    return ConfigError(
        f"{what}; the setting is {' or '.join(elsewhere[near[0]])}."
        f" Valid in {where}:{valid}"
    )
  return ConfigError(f"{what}{'' if known else ' or section'}.{hint}")
