"""How many texts are read at a time: as many as fit in the memory free now."""

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import psutil

from dape_jax.evaluation.perplexity import chunk_for

# Of the memory free: the rest is for what grows beside, and for other programs.
FRACTION = 0.5


def free_bytes() -> int:
  """Returns the memory free now: of the device, or on a CPU of the machine."""
  stats = jax.local_devices()[0].memory_stats()
  if stats and "bytes_limit" in stats:
    return stats["bytes_limit"] - stats["bytes_in_use"]
  return free_host_bytes()


def free_host_bytes(group: str = "/sys/fs/cgroup") -> int:
  """Returns the memory that a process of this machine can still have.

  What the operating system says is available, or what a container's limit leaves
  if that is less.

  Args:
    group: folder of the container's limits on Linux.
  """
  available = psutil.virtual_memory().available
  group = pathlib.Path(group)
  try:
    limit = int((group / "memory.max").read_text())
    used = int((group / "memory.current").read_text())
    # Cached files give way.
    used -= _field(group / "memory.stat", "inactive_file")
  except (OSError, LookupError, ValueError):  # No limit: "max".
    return available
  return max(0, min(available, limit - used))


def _field(path: pathlib.Path, name: str) -> int:
  for line in path.read_text().splitlines():
    key, value, *_ = line.split()
    if key == name:
      return int(value)
  raise LookupError(name)


def cache_capacity(longest: int, chunk: int) -> int:
  """Returns how many slots a cache has at the end of a text."""
  capacity = chunk
  while capacity < longest:
    capacity *= 2
  return capacity


def step_bytes(
    step: Callable[..., Any], model: Any, params: Any, chunk: int, capacity: int
) -> int:
  """Returns the memory that reading a chunk of one text takes, in bytes.

  That is the cache as it comes and goes, the logits and everything in between,
  as the compiler has laid them out; without the parameters.

  Args:
    step: of `perplexity.make_step(model)`.
    model, params: the model and its parameters.
    chunk: tokens.
    capacity: slots of the cache.
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
  """Chooses how many texts are read at a time."""

  def __init__(self, asked: int, chunk: int):
    """Initialises.

    Args:
      asked: that many; 0 is as many as fit.
      chunk: tokens read at a time, at most.
    """
    self._asked = asked
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
    """Returns a number from 1 to `num_texts`.

    Args:
      step, model, params: see `step_bytes`; the parameters are in memory.
      longest: tokens of the longest text.
      num_texts: how many there are.
    """
    if self._asked or num_texts <= 1:
      return max(1, min(self._asked or 1, num_texts))
    chunk = chunk_for(longest, self._chunk)
    key = (model, chunk, cache_capacity(longest, chunk))
    free = int(FRACTION * free_bytes())
    # Measuring means compiling. Shorter texts take no more than longer ones.
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
  """Returns the largest power of two for a batch that wastes little.

  Batches have equally many rows, so the last one may have empty ones: at most a
  quarter of the number of texts. Powers of two, so that few programs are
  compiled for the many numbers of texts that an evaluation has.

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
