"""Settings of how a run lies on its devices."""

import dataclasses

from dape_jax.config.checks import require, require_positive


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Axes of the mesh; their product is the number of devices of all processes.

  They change how fast a run is and how much memory a device needs, not what it
  computes: a run may go on with another mesh.

  Attributes:
    data: groups of devices that each work on other rows of a batch and hold the
      whole state; -1 is as many as the devices make.
    fsdp: devices of a group, over which its rows too and the parameters and
      optimizer state are split (fully sharded data parallelism).
    context: devices over which each row is split, by position.
    ring: where rows are split, keys and values go round the devices instead of
      being gathered on each: less memory for long rows, more time.
  """

  data: int = -1
  fsdp: int = 1
  context: int = 1
  ring: bool = False

  def __post_init__(self):
    require(
        self.data == -1 or self.data > 0,
        "mesh.data",
        self.data,
        "must be greater than 0, or -1 for as many as the devices make.",
    )
    require_positive("mesh", self, "fsdp", "context")
    require(
        not self.ring or self.context > 1,
        "mesh.ring",
        self.ring,
        "needs rows that are split; set config.mesh.context above 1.",
    )
