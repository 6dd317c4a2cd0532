"""Whether a command may go on with the checkpoint of another one."""

import json
from collections.abc import Mapping
from typing import Any

from dape_jax.config import ExperimentConfig
from dape_jax.config_dict import experiment_from_dict, experiment_to_dict
from dape_jax.errors import ConfigError

# Settings that a resumed run may change: they do not change its result. Where the
# data lie is free, because the data's state says what they are.
_FREE = frozenset(
    {
        "data.dir",
        "data.source",
        "data.tokenizer",
        "mesh.data",
        "mesh.fsdp",
        "mesh.context",
        "mesh.ring",
        "train.log_every",
        "train.eval_every",
        "train.eval_batches",
        "train.checkpoint_every",
        "train.keep_checkpoints",
        "train.keep_every",
    }
)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  flat = {}
  for name, value in values.items():
    if isinstance(value, Mapping):
      flat.update(_flatten(value, f"{prefix}{name}."))
    else:
      flat[prefix + name] = value
  return flat


def check_same_config(
    config: ExperimentConfig, stored: Mapping[str, Any]
) -> None:
  """Checks that a run may go on with the checkpoint of a stored config.

  Args:
    config: of this command.
    stored: the checkpoint's, of `experiment_to_dict`.

  Raises:
    ConfigError: a setting that changes the result differs.
  """
  # Through JSON, so that a tuple equals the list it was stored as.
  new = _flatten(json.loads(json.dumps(experiment_to_dict(config))))
  old = _flatten(experiment_to_dict(experiment_from_dict(stored)))
  for name in sorted((new.keys() | old.keys()) - _FREE):
    if new.get(name) != old.get(name):
      raise ConfigError(
          f"config.{name}={new.get(name)!r} but the checkpoint in --workdir was"
          f" trained with {old.get(name)!r}; set it back, or give another"
          " --workdir."
      )
