"""The encodings of a model's layers, built from its config."""

import jax

from dape_jax import encodings
from dape_jax.config import ModelConfig
from dape_jax.encodings.base import PositionalEncoding
from dape_jax.errors import ConfigError, did_you_mean


def is_shared(config: ModelConfig) -> bool:
  """Returns whether the model owns one encoding that all layers use.

  True if the layers share its parameters, or if it acts on the embedded tokens.

  Raises:
    ConfigError: an absolute encoding is combined with others.
  """
  modules = [make_encoding(config, n, parent=None) for n in config.encodings]
  is_absolute = any(module.is_absolute for module in modules)
  if is_absolute and len(modules) > 1:
    raise ConfigError(
        f"config.model.encoding={config.encoding!r}: an absolute encoding acts"
        " on the embedded tokens and cannot be combined with others; choose"
        " one."
    )
  return config.share_encoding or is_absolute


def check_positions(config: ModelConfig, num_positions: int, what: str) -> None:
  """Checks that every encoding supports positions below `num_positions`.

  Raises:
    ConfigError: one does not; the message begins with `what`.
  """
  for name in config.encodings:
    limit = make_encoding(config, name, parent=None).position_limit()
    if limit is not None and num_positions > limit:
      raise ConfigError(
          f'{what}: encoding "{name}" ends at {limit} positions; use'
          " shorter text, or raise the limit in its options."
      )


def check_ring(config: ModelConfig, tokens: int) -> None:
  """Checks that the encodings support ring attention (config.mesh.ring).

  Args:
    config: model config.
    tokens: tokens of a row on each device.

  Raises:
    ConfigError: an encoding needs whole rows, or more neighboring keys than a
      device has tokens.
  """
  for name in config.encodings:
    encoding = make_encoding(config, name, parent=None)
    score_mod, _ = jax.eval_shape(
        lambda e=encoding: e.init_with_output(
            jax.random.key(0), method="score_mod"
        )
    )
    if score_mod is None:
      continue
    if score_mod.scope == "row":
      raise ConfigError(
          f'config.mesh.ring: encoding "{name}" needs all keys of a row at'
          " once; set config.mesh.ring=False, which gathers them."
      )
    if score_mod.halo > tokens:
      raise ConfigError(
          f'config.mesh.context: encoding "{name}" needs {score_mod.halo}'
          f" neighboring keys, but a device holds {tokens} tokens of a row;"
          " choose a smaller value."
      )


def make_encoding(
    config: ModelConfig, name: str, **linen
) -> PositionalEncoding:
  """Returns the config's encoding `name`.

  Args:
    config: model config.
    name: one of `config.encodings`.
    **linen: `parent` and `name` of the Linen module.

  Raises:
    ConfigError: none of the config's encodings has one of the options.
  """
  valid = {n: encodings.options(n) for n in config.encodings}
  options = dict(config.encoding_options)
  known = set().union(*valid.values())
  for key in options:
    if key not in known:
      raise ConfigError(
          f'config.model.encoding_options: encoding "{config.encoding}" has no'
          f' option "{key}".{did_you_mean(key, known)} Config files set the'
          " options of the encoding named after the colon, as in"
          f" --config=FILE:{config.encoding}."
      )
  options = {k: v for k, v in options.items() if k in valid[name]}
  return encodings.make(name, num_heads=config.num_heads, **options, **linen)
