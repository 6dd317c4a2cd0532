"""Compiles attention for TPUs that are not there, and prints a row for each case.

A process of its own, which `tpu.measure` starts: its one argument is the JSON of
`rows`' keyword arguments, each line of its output the JSON of a row.
"""

import itertools
import json
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies

from dape_jax import encodings
from dape_jax.attention import tiling
from dape_jax.benchmarks.attention import materialised, run
from dape_jax.benchmarks.attention.tpu import CHIPS
from dape_jax.compiler import schedule
from dape_jax.compiler import tpu as tpu_compiler

SPLASH = "splash"


def rows(
    *,
    chip: str,
    implementation: str,
    encoding_names: list[str],
    lengths: list[int],
    passes: list[str],
    shape: tuple[int, int, int],
    dtype: str,
    dump: str,
) -> Iterator[dict[str, Any]]:
  """Yields what the compiler says of each case.

  Args:
    chip: of CHIPS.
    implementation: see `run.measure`, or "splash": JAX's own splash attention,
      which takes no encoding and is compiled with "nope" instead.
    encoding_names, lengths, passes, shape, dtype: see `run.measure`.
    dump: the folder that libtpu writes schedules to.

  Yields:
    chip, encoding, length, pass, implementation; then "skipped", a reason, or
    temp_bytes (in HBM), hbm_bytes (with arguments and results), flops and
    bytes_accessed (as the compiler counts them: a turn of a loop once, kernels
    as they declare), and "cycles", see `_cycles`.
  """
  topology = topologies.get_topology_desc(CHIPS[chip][0], platform="tpu")
  mesh = jax.sharding.Mesh(np.array(topology.devices[:1]), ("device",))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  there = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
  batch, heads, head_dim = shape
  if implementation == SPLASH:
    attend, encoding_names = splash_attention, ["nope"]
  else:
    attend = materialised.implementation(implementation)
  for name, length, which in itertools.product(encoding_names, lengths, passes):
    encoding = encodings.make(name, num_heads=heads)
    params = jax.eval_shape(lambda e=encoding: materialised.init_params(e))
    qkv = jax.ShapeDtypeStruct((batch, length, heads, head_dim), dtype)
    positions = jax.ShapeDtypeStruct((length,), jnp.int32)
    arrays = [params, qkv, qkv, qkv, positions, qkv]
    backward = which == "both"
    arguments = jax.tree.map(there, arrays if backward else arrays[:-1])
    function = materialised.program(encoding, attend, backward=backward)
    with jax.set_mesh(mesh):
      report = _compiled(function, arguments, pathlib.Path(dump))
    yield {
        "chip": chip,
        "encoding": name,
        "length": length,
        "pass": which,
        "implementation": implementation,
    } | report


def _compiled(function: Callable, arguments, dump: pathlib.Path):
  for file in dump.iterdir():
    file.unlink()
  try:
    traced = jax.jit(function).trace(*arguments)
    compiled = traced.lower().compile()
  except Exception as e:  # One case that fails must not cost all the others.
    sizes = tpu_compiler.needed_and_available(e)
    if sizes is None:
      return {"skipped": run.short_reason(e)}
    needed, there = sizes
    return {"skipped": f"does not fit: {needed} of {there} of HBM"}
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
  """Returns cycles of a (query, key) pair, a list of dicts, one for each part.

  "of" is a kernel's name, "a turn of XLA's loop" (counted over the pairs of one
  tile) or "XLA" (all other operations, over all B T S pairs, seen or not).
  "full" and "masked" are cycles of a pair in a tile in which all pairs are
  visible and in any other; "masked" is None where all tiles are treated alike.
  Of a kernel also "bundles", those of its tiles, and "step_bundles", those of the
  rest of a grid step. Empty where this libtpu says nothing that is understood.
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
  # The only loops over tiles are those of "chunked".
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
  """Returns JAX's splash attention of causal queries, [B, T, N, H].

  Blocks of 512 queries and 2048 keys, 512 of them at a time, and one kernel for
  the whole backward pass take the fewest cycles of those tried.
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


if __name__ == "__main__":
  for row in rows(**json.loads(sys.argv[1])):
    print(json.dumps(row), flush=True)
