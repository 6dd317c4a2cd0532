"""The TPU compiler's estimates for attention, and the matrix units' bound."""

import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dape_jax.compiler import tpu as tpu_compiler

if TYPE_CHECKING:
  from dape_jax.benchmarks.attention.materialised import Cases

# Name of a topology, rows that a core's matrix units take per cycle (v6e's two take
# two each), and the side of a matrix unit. 2 * rows * side^2 * clock is the published
# peak of a core.
CHIPS = {
    "v5e": ("v5e:2x2", 4, 128),
    "v5p": ("v5p:2x2x1", 4, 128),
    "v6e": ("v6e:2x2", 4, 256),
}


def mxu_bound(
    chip: str,
    *,
    heads: int,
    head_dim: int,
    width: int | None,
    bias: bool,
    taps: int = 1,
) -> dict[str, float]:
  """Returns a lower bound on the matrix units' cycles per (query, key) pair.

  A matrix unit of side L multiplies a row of up to L numbers by the L x L numbers that
  it holds. So a product [m, k] x [k, n] takes m ceil(k / L) ceil(n / L) rows, and a
  core takes U rows per cycle. With the pairs on the n or k side of every product, the
  number of rows for each L pairs is:

      forward                                      rows
        scores q k^T, each head                    N ceil(H / L)
        output w v, each head                      N ceil(H / L)
        network [M, C] x [C, pairs]                M ceil(C / L)
        network [N, M] x [M, pairs]                N' ceil(M / L)
      backward, scores and network again and
        d_w = d_out v^T, d_q, d_k, d_v             4 N ceil(H / L)
        d_hidden [M, N] x [N, pairs]               M ceil(N / L)
        d_inputs [C, M] x [M, pairs]               C' ceil(M / L)
        d_kernels [M, pairs] x [pairs, C], [N, pairs] x [pairs, M]
                                                   M ceil(C / L) + N' ceil(M / L)

  and a pair takes rows / (L U) cycles. There are C = 2 N inputs (N without a bias);
  N' and C' are N and C rounded up to the 16 rows of a bfloat16 register. H = 64,
  N = 12, M = 32 on v5e: (24 + 32 + 16) / 512 = 0.141 forward, 0.430 backward. A
  network over several keys contracts that many times more numbers. A schedule, in
  which no instruction waits for a busy unit, can be an eighth below the bound.

  Args:
    chip: key of CHIPS.
    heads, head_dim: N and H.
    width: M, or None for an encoding without a score network.
    bias: whether the network also takes a bias.
    taps: kernel size of each layer of the network, in keys.

  Returns:
    Cycles per pair of the passes "forward" and "backward".
  """
  _, units, side = CHIPS[chip]
  blocks = lambda n: -(-n // side)
  padded = lambda n: -(-n // 16) * 16
  product = heads * blocks(head_dim)
  forward, backward = 2 * product, 5 * product
  if width is not None:
    inputs = (2 if bias else 1) * heads
    network = width * blocks(taps * inputs)
    network += padded(heads) * blocks(taps * width)
    forward += network
    backward += 2 * network + width * blocks(taps * heads)
    backward += padded(inputs) * blocks(taps * width)
  return {
      "forward": forward / side / units,
      "backward": backward / side / units,
  }


def measure(
    cases: "Cases", chips: list[str], implementations: list[str]
) -> Iterator[dict[str, Any]]:
  """Yields the rows of `ahead_of_time.send_rows` for each chip and implementation.

  Each has its own process: libtpu reads its settings once, and dumps to one folder.

  Raises:
    ConfigError: the compiler is not installed, or its process failed.
  """
  tpu_compiler.check_installed("--tpu")
  # Imported late: JAX takes seconds to start.
  from dape_jax.benchmarks.attention.ahead_of_time import send_rows

  for chip in chips:
    for name in implementations:
      with (
          tempfile.TemporaryDirectory(prefix="dape_jax_bench") as dump,
          tpu_compiler.compiler_process(
              send_rows, cases, chip, name, dump
          ) as receive,
      ):
        yield from iter(receive, None)
