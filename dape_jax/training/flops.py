"""FLOPs of a training step and peak FLOP rates of chips, for the MFU."""

import dataclasses
import math
from typing import Any

import jax

from dape_jax.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Chip:
  """Data-sheet peak rates of one JAX device.

  Attributes:
    flops: dense bfloat16 FLOP/s.
    memory_bandwidth: bytes/s of main memory.
    link_bandwidth: bytes/s to both neighbors along one axis of a TPU torus;
      None where it depends on the machine.
    memory: usable bytes of main memory, according to the TPU compiler; None for
      other devices.
  """

  flops: float
  memory_bandwidth: float
  link_bandwidth: float | None = None
  memory: float | None = None


_GIB = 2.0**30
# Keys are prefixes of `device_kind`.
_CHIPS = {
    "TPU v4": Chip(275e12, 1.2e12, 9e10, 31.75 * _GIB),
    "TPU v5 lite": Chip(197e12, 8.1e11, 9e10, 15.75 * _GIB),
    "TPU v5": Chip(459e12, 2.8e12, 1.8e11, 95.74 * _GIB),
    "TPU v6 lite": Chip(918e12, 1.6e12, 1.8e11, 31.25 * _GIB),
    "NVIDIA A100": Chip(312e12, 2.0e12),
    "NVIDIA H100": Chip(989e12, 3.3e12),
    "NVIDIA H200": Chip(989e12, 4.8e12),
}


def chip_of(device_kind: str) -> Chip | None:
  """Returns the chip of a `jax.Device.device_kind`; None if it is unknown."""
  names = [name for name in _CHIPS if device_kind.startswith(name)]
  return _CHIPS[max(names, key=len)] if names else None


def flops_per_token(config: ModelConfig, params: Any, length: int) -> float:
  """Returns the FLOPs of a training step per token of a row.

  A step costs three forward passes. A forward pass counts the multiplications
  and additions of matrix products: the projections and the head; scores and
  weighted values for the keys that a token attends to (half a row on average if
  causal, fewer with a window); and DAPE's networks for each of these keys.
  Embeddings, norms, biases, softmax and recomputation do not count.

  Args:
    config: model settings.
    params: the model's parameters, or their shapes.
    length: tokens per row T.
  """
  sizes = {
      tuple(entry.key for entry in path): math.prod(leaf.shape)
      for path, leaf in jax.tree_util.tree_leaves_with_path(params)
  }
  matrices = sum(
      size
      for names, size in sizes.items()
      if names[-1] == "kernel" and "encoding" not in names
  )
  networks = {
      names: size
      for names, size in sizes.items()
      if names[-1] in ("hidden_kernel", "output_kernel")
  }
  kinds = config.layer_kinds
  num_layers = config.num_layers // len(kinds)
  pairs = 0.0
  for i, (_, window) in enumerate(kinds):
    # The blocks of one kind share stacked parameters, named after the kind.
    is_shared = len(kinds) == 1 or config.share_encoding
    network = sum(
        size
        for names, size in networks.items()
        if is_shared or f"blocks_{i}" in names
    )
    network *= num_layers if config.share_encoding else 1
    keys = _mean_keys(window, length, config.causal)
    pairs += keys * (2 * config.width * num_layers + network)
  return 3 * 2 * (matrices + pairs)


def _mean_keys(window: int, length: int, causal: bool) -> float:
  """Returns the mean number of keys per query in a row; 0 means no window."""
  window = min(window or length, length)
  before = window - window * (window - 1) / (2 * length)
  return before if causal else 2 * before - 1
