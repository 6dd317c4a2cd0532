"""Chooses the batch size from the memory that is free."""

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import psutil

from dape_jax.attention.cache import next_power_of_two
from dape_jax.evaluation.perplexity import chunk_for

# Share of the free memory to use; the rest is left for other allocations.
FRACTION = 0.5


def free_bytes() -> int:
  """Returns the free memory of the device, or of the host on a CPU."""
  stats = jax.local_devices()[0].memory_stats()
  if stats and "bytes_limit" in stats:
    return stats["bytes_limit"] - stats["bytes_in_use"]
  return free_host_bytes()


def free_host_bytes(group: str = "/sys/fs/cgroup") -> int:
  """Returns the host memory that this process can still allocate.

  The smaller of the memory available on the machine and what the container's
  limit leaves.

  Args:
    group: cgroup folder with the container's limits (Linux).
  """
  available = psutil.virtual_memory().available
  group = pathlib.Path(group)
  try:
    limit = int((group / "memory.max").read_text())
    used = int((group / "memory.current").read_text())
    # The kernel evicts cached files on demand.
    stat = (group / "memory.stat").read_text().splitlines()
    used -= int(dict(map(str.split, stat))["inactive_file"])
  except (OSError, LookupError, ValueError):  # No limit: "max".
    return available
  return max(0, min(available, limit - used))


def step_bytes(
    step: Callable[..., Any], model: Any, params: Any, chunk: int, capacity: int
) -> int:
  """Returns the bytes that one step takes per text, without the parameters.

  Taken from the compiler's memory analysis: the cache on input and output, the
  logits and all temporaries.

  Args:
    step: from `perplexity.make_step(model)`.
    model, params: the model and its parameters.
    chunk: tokens per step.
    capacity: cache capacity.
  """
  abstract = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
  cache = jax.eval_shape(lambda: model.empty_cache(1, capacity))
  tokens = jax.ShapeDtypeStruct((1, chunk), jnp.int32)
  arguments = (jax.tree.map(abstract, params), cache, tokens, tokens, tokens)
  used = step.lower(*arguments).compile().memory_analysis()
  return (
      used.argument_size_in_bytes
      + used.output_size_in_bytes
      - used.alias_size_in_bytes
      + used.temp_size_in_bytes
      - sum(x.nbytes for x in jax.tree.leaves(params))
  )


class BatchSize:
  """Chooses the number of texts per batch."""

  def __init__(self, requested: int, chunk: int):
    """Initializes the chooser.

    Args:
      requested: the batch size; 0 means the largest that fits.
      chunk: maximum tokens per step.
    """
    self._requested = requested
    self._chunk = chunk
    self._measured: dict[Any, int] = {}

  def __call__(
      self,
      step: Callable[..., Any],
      model: Any,
      params: Any,
      longest: int,
      num_texts: int,
  ) -> int:
    """Returns a batch size from 1 to `num_texts`.

    Args:
      step, model, params: see `step_bytes`; the parameters are already loaded.
      longest: tokens of the longest text.
      num_texts: number of texts.
    """
    if self._requested or num_texts <= 1:
      return max(1, min(self._requested or 1, num_texts))
    chunk = chunk_for(longest, self._chunk)
    # The cache starts at one chunk and doubles.
    capacity = chunk * next_power_of_two(-(-longest // chunk))
    key = (model, chunk, capacity)
    free = int(FRACTION * free_bytes())
    # Measuring compiles the step, so reuse measurements of longer texts, which
    # are upper bounds.
    longer = (
        used
        for (of, *sizes), used in self._measured.items()
        if of == model and sizes[0] >= key[1] and sizes[1] >= key[2]
    )
    if any(free // used >= num_texts for used in longer):
      return even_rows(num_texts, num_texts)
    if key not in self._measured:
      self._measured[key] = step_bytes(step, model, params, *key[1:])
    return even_rows(free // self._measured[key], num_texts)


def even_rows(fitting: int, num_texts: int) -> int:
  """Returns the largest power of two that wastes few rows.

  All batches have the same number of rows, so the last may have empty ones: at
  most a quarter of the number of texts. Powers of two keep the number of
  compiled programs small.

  Args:
    fitting: rows that fit in memory.
    num_texts: at least 1.
  """
  rows = 1
  while 2 * rows <= min(fitting, num_texts):
    rows *= 2
  while 4 * (-num_texts % rows) > num_texts:
    rows //= 2
  return rows
