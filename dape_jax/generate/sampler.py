"""Text generation with a decoder and its key/value cache."""

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

# Tokens per call of the compiled program, unless they are streamed.
_TOKENS_PER_CALL = 16
# Markers in place of a token: the row has stopped; its logits are not finite.
_STOPPED, _FAILED = -1, -2


@flax.struct.dataclass
class _Rows:
  """Decoding state of a batch.

  Attributes:
    cache: cache of all tokens but the last.
    tokens_B, positions_B: int32, last token of each row, the next model input.
    stopped_B: bool, which rows have ended.
    step: int32 scalar, number of new tokens so far.
  """

  cache: Cache
  tokens_B: jax.Array
  positions_B: jax.Array
  stopped_B: jax.Array
  step: jax.Array


@functools.partial(jax.jit, static_argnames="model", donate_argnames="cache")
def _prefill_chunk(
    model, params, cache, tokens_BxT, segment_ids_BxT, positions_BxT
):
  """Returns the cache with T more tokens; XLA drops the unused logits."""
  _, cache = model.apply(
      {"params": params}, tokens_BxT, segment_ids_BxT, positions_BxT, cache
  )
  return cache


def _prefill(model, params, prompts, chunk: int, num_new: int) -> _Rows:
  """Returns the state after all but the last token of each prompt.

  Prompts are left-padded, so that new tokens directly follow them. Sizes are
  powers of two to limit the number of compilations.
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
  # Commit arrays to the devices now: moving later would recompile.
  sharding = _replicated(params)
  cache = model.empty_cache(len(prompts), next_power_of_two(padded + num_new))
  cache = jax.device_put(cache, sharding)
  for start in range(0, padded, chunk):
    part = slice(start, start + chunk)
    arrays = tokens_BxT, segment_ids_BxT, positions_BxT
    cache = _prefill_chunk(model, params, cache, *(x[:, part] for x in arrays))
  rows = _Rows(
      cache,
      tokens_B=np.array([prompt[-1] for prompt in prompts], np.int32),
      positions_B=lengths_B - 1,
      stopped_B=np.zeros(len(prompts), bool),
      step=np.int32(0),
  )
  return jax.device_put(rows, sharding)


def _replicated(params) -> jax.sharding.Sharding:
  """Returns the sharding that replicates arrays on the parameters' devices."""
  sharding = jnp.asarray(jax.tree.leaves(params)[0]).sharding
  if isinstance(sharding, jax.sharding.NamedSharding):
    spec = jax.sharding.PartitionSpec()
    return jax.sharding.NamedSharding(sharding.mesh, spec)
  return sharding


@functools.partial(jax.jit, static_argnames="model", donate_argnames="rows")
def _decode(model, params, rows: _Rows, sampling: Sampling, num_tokens):
  """Returns the state after up to `num_tokens` steps, and the new tokens.

  Stops early when all rows have ended. New tokens are [B, _TOKENS_PER_CALL].
  """
  batch_size = len(rows.tokens_B)

  def not_done(carry):
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
      # Independent of the other rows of the batch.
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
      not_done, one_token, (jnp.int32(0), rows, none)
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
  """Returns the model's continuation of each prompt.

  Up to rounding, a row depends only on its prompt and, if sampled, on its index
  in the batch, with two exceptions: dynamic NTK uses the scale of the longest
  row, and DAPE V2 with edge="zero" depends on where the matrix ends.

  Prompts are prefilled in chunks, so memory is linear in their length. A new
  batch size, power-of-two cache capacity (prompt plus new tokens) or chunk size
  triggers a compilation.

  Args:
    model: decoder such as `models.Transformer`; hashable.
    params: parameters of the model.
    prompts: token ids, at least one per prompt.
    max_new_tokens: maximum number of new tokens per prompt.
    temperature: divisor of the logits; 0 takes the most likely token.
    top_k: sample from the k most likely tokens; 0 for all.
    top_p: sample from the most likely tokens that reach this total probability.
    seed: random seed, 0 to 2**32 - 1.
    stop_tokens: ids that end a row; the row includes the stop token.
    vocab_size: ids from here on are excluded, such as padding of the head; None
      allows all.
    chunk: maximum number of prompt tokens per prefill step.
    on_tokens: callback after each step, with the new tokens of each row (none
      if the row has ended).

  Returns:
    For each prompt, int32 [up to max_new_tokens], without the prompt.

  Raises:
    ConfigError: an argument is invalid, the text exceeds the encoding's
      position limit, or the model's logits are not finite.
  """
  config = model.config
  if not config.causal or config.num_outputs:
    raise ConfigError(
        f"config.model.causal={config.causal}, num_outputs={config.num_outputs}:"
        " generation needs a decoder (True) whose outputs are tokens (0)."
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
      raise ConfigError(f"prompts[{i}] is empty: give at least one token.")
    check_ids(f"prompts[{i}]", prompt, config.vocab_size)
  if not prompts:
    return []
  longest = max(map(len, prompts))
  check_positions(
      config,
      longest + max_new_tokens - 1,  # The last one is not an input.
      f"max_new_tokens={max_new_tokens} after a prompt of {longest}",
  )
  model = model.at_length(longest + max_new_tokens)
  rows = _prefill(model, params, prompts, chunk, max_new_tokens)
  per_call = 1 if on_tokens else _TOKENS_PER_CALL
  parts = []
  for start in range(0, max_new_tokens, per_call):
    count = np.int32(min(per_call, max_new_tokens - start))
    rows, new_BxC = _decode(model, params, rows, sampling, count)
    new_BxC, stopped_B = jax.device_get((new_BxC, rows.stopped_B))
    if (new_BxC == _FAILED).any():
      raise ConfigError(
          "the model's logits are not finite; use a checkpoint from before"
          " training diverged."
      )
    parts.append([row[row != _STOPPED] for row in new_BxC])
    if on_tokens:
      on_tokens(parts[-1])
    if stopped_B.all():
      break
  return [np.concatenate(row) for row in zip(*parts, strict=True)]
