"""Text that a decoder writes after prompts, through the key/value cache."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dape_jax.attention import Cache
from dape_jax.attention.cache import next_power_of_two
from dape_jax.errors import ConfigError
from dape_jax.generate.next_token import (
    Sampling,
    check_ids,
    make_sampling,
    next_token,
)
from dape_jax.models.layer_encodings import check_positions

# In one call of the compiled program, where nobody waits for each of them.
_TOKENS_PER_CALL = 16
# In place of a token: the row has stopped, or its logits are not finite.
_STOPPED, _FAILED = -1, -2


@flax.struct.dataclass
class _Rows:
  """Where the rows of a batch stand.

  Attributes:
    cache: of all tokens but the last.
    tokens_B, positions_B: int32, each row's last token, which is to be read.
    stopped_B: bool.
    step: int32 scalar, new tokens so far.
  """

  cache: Cache
  tokens_B: jax.Array
  positions_B: jax.Array
  stopped_B: jax.Array
  step: jax.Array


@functools.partial(jax.jit, static_argnames="model", donate_argnames="cache")
def _read(model, params, cache, tokens_BxT, segment_ids_BxT, positions_BxT):
  """Returns the cache with T more tokens; their logits are not computed."""
  _, cache = model.apply(
      {"params": params}, tokens_BxT, segment_ids_BxT, positions_BxT, cache
  )
  return cache


def _read_prompts(model, params, prompts, chunk: int, num_new: int) -> _Rows:
  """Returns the rows after all but the last tokens of the prompts.

  Padded at the left, so that what follows stands beside its prompt. Sizes are
  powers of two, so that few of them are compiled.
  """
  lengths_B = np.array([len(prompt) for prompt in prompts], np.int32)
  longest = int(lengths_B.max()) - 1
  chunk = min(chunk, next_power_of_two(longest))
  padded = -(-longest // chunk) * chunk
  tokens_BxT = np.zeros((len(prompts), padded), np.int32)
  for row, prompt in zip(tokens_BxT, prompts, strict=True):
    row[padded - len(prompt) + 1 :] = prompt[:-1]
  positions_BxT = np.arange(padded) - (padded + 1 - lengths_B[:, None])
  segment_ids_BxT = np.int32(positions_BxT >= 0)
  positions_BxT = np.int32(np.maximum(positions_BxT, 0))
  # There from the start: arrays that move to it compile everything once more.
  place = _place_of(params)
  cache = model.empty_cache(len(prompts), next_power_of_two(padded + num_new))
  cache = jax.device_put(cache, place)
  for start in range(0, padded, chunk):
    part = slice(start, start + chunk)
    arrays = tokens_BxT, segment_ids_BxT, positions_BxT
    cache = _read(model, params, cache, *(x[:, part] for x in arrays))
  rows = _Rows(
      cache,
      tokens_B=np.array([prompt[-1] for prompt in prompts], np.int32),
      positions_B=lengths_B - 1,
      stopped_B=np.zeros(len(prompts), bool),
      step=np.int32(0),
  )
  return jax.device_put(rows, place)


def _place_of(params) -> jax.sharding.Sharding:
  """Returns the parameters' devices, for arrays that are whole on each."""
  sharding = jnp.asarray(jax.tree.leaves(params)[0]).sharding
  if isinstance(sharding, jax.sharding.NamedSharding):
    whole = jax.sharding.PartitionSpec()
    return jax.sharding.NamedSharding(sharding.mesh, whole)
  return sharding


@functools.partial(jax.jit, static_argnames="model", donate_argnames="rows")
def _decode(model, params, rows: _Rows, sampling: Sampling, num_tokens):
  """Returns the rows with up to `num_tokens` more, and these, [B, per call].

  Ends when all rows have stopped.
  """
  batch_size = len(rows.tokens_B)

  def goes_on(carry):
    i, rows, _ = carry
    return (i < num_tokens) & ~rows.stopped_B.all()

  def one_token(carry):
    i, rows, new_BxC = carry
    logits_Bx1xV, cache = model.apply(
        {"params": params},
        rows.tokens_B[:, None],
        (~rows.stopped_B).astype(jnp.int32)[:, None],
        rows.positions_B[:, None],
        rows.cache,
    )
    logits_BxV = logits_Bx1xV[:, 0].astype(jnp.float32)

    def drawn(logits_V, row):
      # Of this row alone, whatever the others are.
      key = jax.random.fold_in(sampling.key, row)
      key = jax.random.fold_in(key, rows.step)
      return next_token(logits_V, key, sampling)

    drawn_B = jax.vmap(drawn)(logits_BxV, jnp.arange(batch_size))
    failed_B = ~jnp.isfinite(logits_BxV).all(axis=1)
    new_B = jnp.where(failed_B, _FAILED, drawn_B)
    new_B = jnp.where(rows.stopped_B, _STOPPED, new_B)
    rows = _Rows(
        cache,
        drawn_B,
        rows.positions_B + 1,
        rows.stopped_B | failed_B | sampling.stops_V[drawn_B],
        rows.step + 1,
    )
    return i + 1, rows, new_BxC.at[:, i].set(new_B)

  none = jnp.full((batch_size, _TOKENS_PER_CALL), _STOPPED, jnp.int32)
  _, rows, new_BxC = jax.lax.while_loop(
      goes_on, one_token, (jnp.int32(0), rows, none)
  )
  return rows, new_BxC


def generate(
    model: Any,
    params: Any,
    prompts: Sequence[npt.ArrayLike],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    stop_tokens: Sequence[int] = (),
    vocab_size: int | None = None,
    chunk: int = 512,
    on_tokens: Callable[[list[np.ndarray]], Any] | None = None,
) -> list[np.ndarray]:
  """Returns what the model writes after each prompt.

  Up to rounding a row depends on its prompt alone, and where it is drawn also on
  its place in the batch. (But dynamic NTK turns all rows for the longest one,
  and a row of DAPE V2 with edge="zero" depends on where the matrix ends.)
  Prompts are read through the cache in chunks: memory is linear in the length.
  One program is compiled for each batch size and each power of two of tokens,
  prompt and new ones together, and one for each size of chunks.

  Args:
    model: decoder such as `models.Transformer`; hashable.
    params: its parameters.
    prompts: token ids, each of any length from 1.
    max_new_tokens: at most so many after each prompt.
    temperature: logits are divided by it; 0 takes the likeliest token.
    top_k: draws from the k likeliest tokens only; 0 from all.
    top_p: draws from the likeliest tokens that make up this probability.
    seed: 0 to 2**32 - 1.
    stop_tokens: ids that end a row; the one that did is its last token.
    vocab_size: ids from here on are not taken, such as those that only pad the
      head; None takes all.
    chunk: tokens of a prompt read at a time, at most.
    on_tokens: called with the new tokens of each row, none if it has stopped,
      as soon as one is there.

  Returns:
    For each prompt int32 [up to max_new_tokens], without the prompt.

  Raises:
    ConfigError: an argument is wrong, the encoding has no numbers for so long a
      text, or the model's logits are not finite.
  """
  config = model.config
  if not config.causal or config.num_outputs:
    raise ConfigError(
        f"config.model.causal={config.causal}, num_outputs={config.num_outputs}:"
        " only a decoder (True) whose outputs are its tokens (0) writes text."
    )
  sampling = make_sampling(
      config.vocab_size,
      temperature=temperature,
      top_k=top_k,
      top_p=top_p,
      seed=seed,
      stop_tokens=stop_tokens,
      num_allowed=vocab_size,
  )
  for name, value in (("max_new_tokens", max_new_tokens), ("chunk", chunk)):
    if value < 1:
      raise ConfigError(f"{name}={value}: must be 1 or more.")
  prompts = [np.asarray(prompt) for prompt in prompts]
  for i, prompt in enumerate(prompts):
    if not prompt.size:
      raise ConfigError(f"prompts[{i}] is empty: give text or a first token.")
    check_ids(f"prompts[{i}]", prompt, config.vocab_size)
  if not prompts:
    return []
  longest = max(map(len, prompts))
  check_positions(
      config,
      longest + max_new_tokens - 1,  # The last one is not read.
      f"max_new_tokens={max_new_tokens} after a prompt of {longest}",
  )
  model = model.at_length(longest + max_new_tokens)
  rows = _read_prompts(model, params, prompts, chunk, max_new_tokens)
  per_call = 1 if on_tokens else _TOKENS_PER_CALL
  parts = []
  for start in range(0, max_new_tokens, per_call):
    count = np.int32(min(per_call, max_new_tokens - start))
    rows, new_BxC = _decode(model, params, rows, sampling, count)
    new_BxC, stopped_B = jax.device_get((new_BxC, rows.stopped_B))
    if (new_BxC == _FAILED).any():
      raise ConfigError(
          "the model's logits are not finite; take a checkpoint from before its"
          " training went wrong."
      )
    parts.append([row[row != _STOPPED] for row in new_BxC])
    if on_tokens:
      on_tokens(parts[-1])
    if stopped_B.all():
      break
  return [np.concatenate(row) for row in zip(*parts, strict=True)]
