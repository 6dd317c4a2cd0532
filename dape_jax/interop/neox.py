"""Converts encodings from the released GPT-NeoX forks of KERPLE and DAPE.

Tensors have their released names without a prefix: bias_p, bias_a (KERPLE), c,
L_multiplier, init_L, mlp.* (FIRE), pos_emb (CoPE), mlp2.* (DAPE). PyTorch
Linear weights are [out, in], Conv2d weights [out, in, 1, k].
"""

import logging
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dape_jax.encodings import DapeV2, alibi_slopes
from dape_jax.encodings.registry import split_name
from dape_jax.errors import ConfigError

logger = logging.getLogger(__name__)

# Output bias of DAPE's network; softmax cancels it.
_DROPPED = "mlp2.2.bias"
# ALiBi's fixed slopes, saved as a buffer.
_SLOPES = "slopes"
# FIRE's L0, a static option of the encoding rather than a parameter.
_STATIC = "init_L"


def _fire_layers(tensors: Mapping[str, Any]) -> int:
  return 2 if "mlp.4.weight" in tensors else 1


_RELEASED = ("alibi", "cope", "fire", "kerple_log", "nope", "rope")


def _check_names(name: str, tensors: Mapping[str, Any]) -> None:
  """Raises a ConfigError that names all missing and unexpected tensors."""
  wrapper, base = split_name(name)
  if base not in _RELEASED or name.startswith("dape_static_"):
    raise ConfigError(
        f'encoding "{name}" is not in the released code, which has'
        f" {', '.join(_RELEASED)}, alone and inside DAPE and DAPE V2."
    )
  expected, optional = [], set()
  if base == "alibi":
    optional.add(_SLOPES)
  if base == "cope":
    expected += ["pos_emb"]
  if base == "kerple_log":
    expected += ["bias_p", "bias_a"]
  if base == "fire":
    optional.add(_STATIC)
    expected += ["c", "L_multiplier"]
    for layer in range(_fire_layers(tensors) + 1):
      expected += [f"mlp.{2 * layer}.weight", f"mlp.{2 * layer}.bias"]
  if wrapper:
    optional.add(_DROPPED)
    expected += ["mlp2.0.weight", "mlp2.0.bias", "mlp2.2.weight"]
  missing = sorted(set(expected) - set(tensors))
  extra = sorted(set(tensors) - set(expected) - optional)
  if missing or extra:
    raise ConfigError(
        f'tensors do not fit encoding "{name}":'
        f" missing {missing or 'none'}, extra {extra or 'none'}."
    )


def _reshaped(
    tensors: Mapping[str, Any], key: str, *shape: int | None
) -> np.ndarray:
  """Returns the tensor, checked against `shape` (None matches any size)."""
  array = np.asarray(tensors[key])
  fits = len(array.shape) == len(shape) and all(
      want in (None, size) for want, size in zip(shape, array.shape)
  )
  if not fits:
    wanted = ", ".join("?" if n is None else str(n) for n in shape)
    raise ConfigError(
        f'tensor "{key}" has shape {list(array.shape)}, expected [{wanted}].'
    )
  return array


def encoding_params(name: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the parameters of encoding `name` from released tensors.

  Drops the output bias of DAPE's network (mlp2.2.bias): it adds a constant to
  each row of scores, which softmax cancels. init_L is a static option, returned
  by `encoding_options`. KERPLE's values are clamped on use, not here.

  Args:
    name: registry name, for example "dape_kerple_log".
    tensors: array-likes by released name.

  Returns:
    Float32 tree for `encoding.apply({"params": ...}, method="score_mod")`.

  Raises:
    ConfigError: tensors are missing or unexpected (all are named), or the shape
      of one is wrong.
  """
  _check_names(name, tensors)
  wrapper, base = split_name(name)
  params: dict[str, Any] = {}
  num_heads = None
  if base == "kerple_log":
    num_heads = len(_reshaped(tensors, "bias_p", None, 1, 1))
    for ours, theirs in (("r1", "bias_p"), ("r2", "bias_a")):
      params[ours] = _reshaped(tensors, theirs, num_heads, 1, 1)[:, 0, 0]
  if base == "fire":
    params["c"] = np.reshape(_scalar(tensors, "c"), ())
    params["m"] = np.reshape(_scalar(tensors, "L_multiplier"), ())
    fan_in: int | None = 1
    for layer in range(_fire_layers(tensors) + 1):
      weight = _reshaped(tensors, f"mlp.{2 * layer}.weight", None, fan_in)
      fan_in = weight.shape[0]
      params[f"kernel_{layer}"] = weight.T
      params[f"bias_{layer}"] = _reshaped(
          tensors, f"mlp.{2 * layer}.bias", fan_in
      )
    num_heads = fan_in
  if base == "cope":
    params["table"] = _reshaped(tensors, "pos_emb", 1, None, None)[0]
  if _SLOPES in tensors:
    slopes = np.ravel(tensors[_SLOPES])
    if not np.allclose(slopes, alibi_slopes(len(slopes)), rtol=1e-3):
      raise ConfigError(f'tensor "{_SLOPES}" differs from ALiBi\'s slopes.')
  if wrapper:
    params = {"base": params} if params or base == "alibi" else {}
    params |= _network_params(tensors, wrapper is DapeV2, base, num_heads)
    if _DROPPED in tensors:
      logger.info("Dropped %s of %s: softmax cancels it.", _DROPPED, name)
  return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)


def _scalar(tensors: Mapping[str, Any], key: str) -> np.ndarray:
  array = np.asarray(tensors[key])
  if array.size != 1:
    raise ConfigError(f'tensor "{key}" has shape {list(array.shape)}, not [].')
  return array


def _network_params(
    tensors: Mapping[str, Any], is_v2: bool, base: str, num_heads: int | None
) -> dict[str, Any]:
  """Returns DAPE's kernels as [in, out], or [k, in, out] for V2."""
  window = (1, None) if is_v2 else ()
  output = _reshaped(tensors, "mlp2.2.weight", num_heads, None, *window)
  num_heads, width = output.shape[:2]
  channels = num_heads * (1 if base in ("nope", "rope") else 2)
  size = output.shape[3:]
  window = (1, *size) if is_v2 else ()
  if is_v2 and size[0] % 2 == 0:
    raise ConfigError(
        f'tensor "mlp2.2.weight" has shape {list(output.shape)}: its kernel'
        " size must be odd."
    )
  hidden = _reshaped(tensors, "mlp2.0.weight", width, channels, *window)
  if is_v2:
    hidden, output = hidden[:, :, 0], output[:, :, 0]
  return {
      "hidden_kernel": hidden.T,
      "hidden_bias": _reshaped(tensors, "mlp2.0.bias", width),
      "output_kernel": output.T,
  }


def encoding_options(name: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the options of `make(name, ...)` that match released tensors.

  Sizes come from the tensors, FIRE's threshold from init_L (default if absent).
  DAPE V2 gets edge="zero", as released.

  Raises:
    ConfigError: tensors are missing or unexpected; all are named.
  """
  _check_names(name, tensors)
  wrapper, base = split_name(name)
  options: dict[str, Any] = {}
  if base == "fire":
    options["fire_layers"] = _fire_layers(tensors)
    options["fire_width"] = len(_reshaped(tensors, "mlp.0.weight", None, 1))
    if _STATIC in tensors:
      options["threshold"] = float(_scalar(tensors, _STATIC).item())
  if base == "cope":
    shape = _reshaped(tensors, "pos_emb", 1, None, None).shape
    options["max_position"] = shape[-1]
  if wrapper:
    window = (1, None) if wrapper is DapeV2 else ()
    hidden = _reshaped(tensors, "mlp2.0.weight", None, None, *window)
    options["width"] = len(hidden)
    if wrapper is DapeV2:
      options["kernel_size"] = hidden.shape[-1]
      options["edge"] = "zero"
  return options
