"""What a chip of each kind can do, by its maker's data sheet."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Chip:
  """One device as JAX counts them.

  Attributes:
    flops: dense bfloat16 FLOP/s.
    memory_bandwidth: bytes/s of main memory.
    link_bandwidth: bytes/s to the two neighbours along one axis of a TPU's torus,
      both together; None where it depends on the machine.
    memory: usable bytes of main memory, as the TPU compiler says; None where it is
      not asked.
  """

  flops: float
  memory_bandwidth: float
  link_bandwidth: float | None = None
  memory: float | None = None


_GIB = 2.0**30
# By the start of `device_kind`.
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
  """Returns the chip of a `jax.Device.device_kind`, None of one not known."""
  names = [name for name in _CHIPS if device_kind.startswith(name)]
  return _CHIPS[max(names, key=len)] if names else None
