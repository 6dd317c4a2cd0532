"""The TPU compiler's estimates for attention, one row for each case."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies

from dape_jax import encodings
from dape_jax.attention import tiling
from dape_jax.benchmarks.attention import materialised, run
from dape_jax.benchmarks.attention.tpu import CHIPS
from dape_jax.compiler import schedule
from dape_jax.compiler import tpu as tpu_compiler

SPLASH = "splash"


# Without kernels there are no schedules to dump, which takes several times as long
# as compiling.
_WITHOUT_KERNELS = ("reference", materialised.MATERIALISED, "chunked")


def send_rows(
    send: Callable[[dict[str, Any] | None], None],
    cases: materialised.Cases,
    chip: str,
    implementation: str,
    dump: str,
) -> None:
  """Sends the compiler's estimates for each case, then None.

  A row has chip, encoding, length, pass, implementation; then "skipped", a reason,
  or temp_bytes (in HBM), hbm_bytes (with arguments and results), flops and
  bytes_accessed (as the compiler counts them: loop bodies once, kernels by their
  cost estimate), and "cycles", see `_cycles`.

  Args:
    send: takes each row.
    cases: to compile.
    chip: key of CHIPS.
    implementation: see `run.measure`; or "splash", JAX's own splash attention,
      which takes no encoding and is compiled once, as "nope".
    dump: folder to which libtpu writes schedules.
  """
  if implementation not in _WITHOUT_KERNELS:
    os.environ["LIBTPU_INIT_ARGS"] = (
        f"{os.environ.get('LIBTPU_INIT_ARGS', '')} --xla_jf_dump_to={dump}"
        " --xla_jf_dump_llo_text=true"
    )
  topology = topologies.get_topology_desc(CHIPS[chip][0], platform="tpu")
  mesh = jax.sharding.Mesh(np.array(topology.devices[:1]), ("device",))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  on_chip = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
  if implementation == SPLASH:
    attend = splash_attention
    cases = dataclasses.replace(cases, encoding_names=["nope"])
  else:
    attend = materialised.implementation(implementation)
  for case in cases:
    encoding = encodings.make(case["encoding"], num_heads=cases.shape[1])
    backward = case["pass"] == "both"
    make = functools.partial(
        materialised.arguments,
        encoding,
        case["length"],
        cases.shape,
        cases.dtype,
        backward=backward,
    )
    arguments = jax.tree.map(on_chip, jax.eval_shape(make))
    function = materialised.program(encoding, attend, backward=backward)
    with jax.set_mesh(mesh):
      report = _compiled(function, arguments, pathlib.Path(dump))
    send({"chip": chip, **case, "implementation": implementation} | report)
  send(None)


def _compiled(function: Callable, arguments, dump: pathlib.Path):
  for file in dump.iterdir():
    file.unlink()
  try:
    traced = jax.jit(function).trace(*arguments)
    compiled = traced.lower().compile()
  except Exception as e:  # A failing case must not end the others.
    sizes = tpu_compiler.needed_and_available(e)
    if sizes is None:
      return {"skipped": run.short_reason(e)}
    needed, available = sizes
    return {"skipped": f"does not fit: {needed} of {available} of HBM"}
  memory = compiled.memory_analysis()
  costs = compiled.cost_analysis() or {}
  sizes = (
      memory.temp_size_in_bytes,
      memory.argument_size_in_bytes,
      memory.output_size_in_bytes,
      -memory.alias_size_in_bytes,
  )
  batch, length = arguments[1].shape[:2]
  return {
      "temp_bytes": memory.temp_size_in_bytes,
      "hbm_bytes": sum(sizes),
      "flops": costs.get("flops"),
      "bytes_accessed": costs.get("bytes accessed"),
      "cycles": _cycles(
          schedule.pallas_kernels(traced.jaxpr),
          schedule.xla_cycles(compiled.as_text()),
          dump,
          batch,
          length,
      ),
  }


def _cycles(kernels, xla, dump, batch: int, length: int):
  """Returns cycles per (query, key) pair, a list of dicts, one for each part.

  "of" is a kernel's name, "a turn of XLA's loop" (per pair of one tile) or "XLA" (all
  other operations, per pair of all B T S, visible or not).
  "full" and "masked" are cycles per pair in tiles without and with masked pairs;
  "masked" is None if all tiles run the same code. Kernels also have "bundles", those
  of their tiles, and "step_bundles", those of the rest of a grid step. The list is
  empty if this libtpu reports nothing in a known format.
  """
  all_pairs = batch * length * length
  parts = []
  for name, steps in kernels:
    found = schedule.kernel_schedule(dump, name)
    if found is None or found.unknown_trips:
      continue
    per_pair = sorted(n * steps / all_pairs for n in found.bodies)
    parts.append(
        {
            "of": name,
            "full": per_pair[0],
            "masked": per_pair[-1] if len(per_pair) > 1 else None,
            "bundles": list(found.bodies),
            "step_bundles": found.step,
        }
    )
  if xla is None:
    return parts
  # Only "chunked" has loops over tiles.
  q_limit, kv_limit = tiling.default_blocks(batch)
  q_block = tiling.even_block(length, q_limit)
  kv_block = tiling.even_block(length, kv_limit)
  together = tiling.elements_together(batch, q_block, kv_block)
  for cycles in xla.per_turn:
    per_pair = cycles / (together * q_block * kv_block)
    parts.append(
        {"of": "a turn of XLA's loop", "full": per_pair, "masked": None}
    )
  if xla.known is not None:
    parts.append({"of": "XLA", "full": xla.known / all_pairs, "masked": None})
  return parts


def splash_attention(query, key, value, score_mod, positions):
  """Computes JAX's causal splash attention, [B, T, N, H].

  Blocks of 512 queries and 2048 keys, processed 512 at a time, and a fused backward
  kernel take the fewest cycles of those tried.
  """
  from jax.experimental.pallas.ops.tpu.splash_attention import (
      splash_attention_kernel as splash,
  )
  from jax.experimental.pallas.ops.tpu.splash_attention import (
      splash_attention_mask as masks,
  )

  del score_mod, positions
  length, heads, head_dim = query.shape[1:]
  if length % 2048 and length not in (512, 1024):
    raise NotImplementedError("lengths are 512, 1024 and multiples of 2048")
  block, long_block = min(length, 512), min(length, 2048)
  kernel = splash.make_splash_mha(
      masks.MultiHeadMask([masks.CausalMask((length, length))] * heads),
      block_sizes=splash.BlockSizes(
          block_q=block,
          block_kv=long_block,
          block_kv_compute=block,
          block_q_dkv=block,
          block_kv_dkv=long_block,
          block_kv_dkv_compute=block,
          use_fused_bwd_kernel=True,
      ),
      head_shards=1,
      q_seq_shards=1,
  )
  q, k, v = (x.swapaxes(1, 2) for x in (query * head_dim**-0.5, key, value))
  return jax.vmap(kernel)(q, k, v).swapaxes(1, 2)
