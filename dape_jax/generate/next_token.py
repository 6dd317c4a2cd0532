"""The next token: greedy, or sampled with temperature, top-k and top-p."""

from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from dape_jax.errors import ConfigError

# At higher temperatures, float32 cannot distinguish the logits.
_MAX_TEMPERATURE = 1e30


@flax.struct.dataclass
class Sampling:
  """Sampling settings as arrays, so that changing them does not recompile.

  Attributes:
    key: `jax.random` key.
    temperature, top_k, top_p: scalars, see `generate`.
    allowed_V: bool mask of the tokens that may be sampled.
    stops_V: bool mask of the tokens that end a row.
  """

  key: jax.Array
  temperature: jax.Array
  top_k: jax.Array
  top_p: jax.Array
  allowed_V: jax.Array
  stops_V: jax.Array


def make_sampling(
    vocab_size: int,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    stop_tokens: Sequence[int],
    num_allowed: int | None,
) -> Sampling:
  """Returns the settings of `sampler.generate` as arrays.

  Raises:
    ConfigError: a setting is invalid.
  """
  if num_allowed is None:
    num_allowed = vocab_size
  for name, value, fits, valid in (
      (
          "temperature",
          temperature,
          0 <= temperature <= _MAX_TEMPERATURE,
          "0 to 1e30",
      ),
      ("top_k", top_k, top_k >= 0, "1 or more, or 0 for all tokens"),
      ("top_p", top_p, 0 < top_p <= 1, "above 0 and up to 1; 1 keeps all"),
      ("seed", seed, 0 <= seed < 2**32, "0 to 2**32 - 1"),
      (
          "vocab_size",
          num_allowed,
          1 <= num_allowed <= vocab_size,
          f"1 to {vocab_size}, the rows of the model's head",
      ),
  ):
    if not fits:
      raise ConfigError(f"{name}={value}: must be {valid}.")
  check_ids("stop_tokens", np.asarray(stop_tokens), vocab_size)
  ids_V = np.arange(vocab_size)
  if temperature < np.finfo(np.float32).tiny:
    temperature = 0  # Some operations flush subnormals to 0, others do not.
  return Sampling(
      jax.random.key(np.uint32(seed)),
      temperature=np.float32(temperature),
      top_k=np.int32(min(top_k, vocab_size)),
      top_p=np.float32(top_p),
      allowed_V=ids_V < num_allowed,
      stops_V=np.isin(ids_V, stop_tokens),
  )


def check_ids(name: str, ids: np.ndarray, vocab_size: int) -> None:
  """Raises a ConfigError that names `name` unless all ids are token ids."""
  is_whole = not ids.size or np.issubdtype(ids.dtype, np.integer)
  if ids.ndim != 1 or not is_whole:
    raise ConfigError(f"{name}: must be a 1-D array of integers, token ids.")
  for token in ids[(ids < 0) | (ids >= vocab_size)]:
    raise ConfigError(f"{name} has id {token}: must be 0 to {vocab_size - 1}.")


def cut_logits(
    logits_V: jax.Array,
    temperature: jax.Array,
    top_k: jax.Array,
    top_p: jax.Array,
) -> jax.Array:
  """Returns (logits - max) / temperature, -inf for excluded tokens, [V].

  Top-k keeps the k most likely tokens; ties go to lower ids. Top-p renormalizes
  their probabilities and keeps the smallest set of most likely tokens whose
  total reaches p, at least one.

  Source: top-k, Fan et al. 2018, section 5.4, arXiv 1805.04833; top-p
  (nucleus), Holtzman et al. 2020, section 3.1, arXiv 1904.09751.

  Args:
    logits_V: float32.
    temperature: scalar above 0.
    top_k: int32 scalar; 0 keeps all.
    top_p: scalar in (0, 1]; 1 keeps all.
  """
  # Subtract the maximum first: dividing by a small temperature can overflow.
  scaled_V = (logits_V - logits_V.max()) / temperature
  order_V = jnp.argsort(-scaled_V)
  kept_V = (top_k == 0) | (jnp.arange(len(order_V)) < top_k)
  probs_V = jax.nn.softmax(jnp.where(kept_V, scaled_V[order_V], -jnp.inf))
  before_V = jnp.cumsum(probs_V) - probs_V
  # Rounded sums may reach 1 before the last token.
  kept_V = kept_V & ((before_V < top_p) | (top_p >= 1))
  kept_V = kept_V.at[0].set(True)
  kept_V = jnp.zeros_like(kept_V).at[order_V].set(kept_V)
  return jnp.where(kept_V, scaled_V, -jnp.inf)


def next_token(
    logits_V: jax.Array, key: jax.Array, sampling: Sampling
) -> jax.Array:
  """Returns the next token, int32 scalar; `key` is used if sampling."""
  logits_V = jnp.where(sampling.allowed_V, logits_V, -jnp.inf)
  cuts = sampling.temperature, sampling.top_k, sampling.top_p
  return jax.lax.cond(
      sampling.temperature > 0,
      lambda: jax.random.categorical(key, cut_logits(logits_V, *cuts)),
      lambda: logits_V.argmax(),
  ).astype(jnp.int32)
