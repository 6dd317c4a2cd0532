"""The cases and programs that the benchmark measures, and their baseline.

The baseline is attention as in the released PyTorch code of DAPE and DAPE V2: the
full score matrix, its concatenation with the bias, the network over heads, a softmax,
and automatic differentiation, which keeps all of them. `pytorch` has the same in
PyTorch.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from dape_jax.attention.api import attention
from dape_jax.encodings.base import PositionalEncoding
from dape_jax.encodings.dape import NEGATIVE_SLOPE, DapeTile
from dape_jax.encodings.dape_v2 import DapeV2Tile
from dape_jax.encodings.tile import AdditiveBias, ScoreMod, Tile
from dape_jax.errors import ConfigError

MATERIALISED = "materialised"


@dataclasses.dataclass(frozen=True)
class Cases:
  """All combinations of encodings, lengths and passes.

  Attributes:
    encoding_names: registered names.
    lengths: numbers of queries and keys.
    passes: "forward" and "both" (forward and backward: gradients of queries,
      keys, values and of all parameters of the encoding).
    shape: batch, heads, head dim.
    dtype: of queries, keys and values.
  """

  encoding_names: list[str]
  lengths: list[int]
  passes: list[str]
  shape: tuple[int, int, int]
  dtype: str

  def __iter__(self) -> Iterator[dict[str, Any]]:
    """Yields encoding, length and pass of each case."""
    names = ("encoding", "length", "pass")
    for case in itertools.product(
        self.encoding_names, self.lengths, self.passes
    ):
      yield dict(zip(names, case, strict=True))


def init_params(encoding: PositionalEncoding) -> dict[str, Any]:
  """Returns the parameters of an encoding, {} if it has none.

  Raises:
    ConfigError: the encoding needs token embeddings, which the benchmark lacks.
  """
  x, heads = jnp.ones((1, 1, 8)), jnp.ones((1, 1, encoding.num_heads, 8))
  features, variables = encoding.init_with_output(
      jax.random.key(0), x, heads, heads, method="features"
  )
  if jax.tree.leaves(features) or encoding.is_absolute:
    raise ConfigError(
        f"--encodings: {type(encoding).__name__} needs token embeddings; the"
        " benchmark has only queries, keys and values."
    )
  return dict(variables.get("params", {}))


def arguments(
    encoding: PositionalEncoding,
    length: int,
    shape: tuple[int, int, int],
    dtype: str,
    *,
    backward: bool,
) -> list[Any]:
  """Returns random arguments of `program`; see `Cases`."""
  batch, heads, head_dim = shape
  query, key, value, cotangent = (
      jax.random.normal(key, (batch, length, heads, head_dim), dtype)
      for key in jax.random.split(jax.random.key(0), 4)
  )
  positions = jnp.arange(length, dtype=jnp.int32)
  arrays = [init_params(encoding), query, key, value, positions]
  return [*arrays, cotangent] if backward else arrays


def program(
    encoding: PositionalEncoding,
    attend: Callable[..., jax.Array],
    *,
    backward: bool,
) -> Callable[..., Any]:
  """Returns the function to jit and measure.

  Args:
    encoding: its rotation of queries and keys, if any, is part of the program.
    attend: maps (query, key, value, score_mod, positions) to [B, T, N, H].
    backward: whether to return the gradients too.

  Returns:
    A function from (params, query, key, value, positions) to the output; with
    backward, from these and the cotangent to the output and the gradients of params,
    query, key and value.
  """

  def forward(params, query, key, value, positions):
    variables = {"params": params}
    query, key = encoding.apply(
        variables, query, key, positions, positions, method="rotate"
    )
    score_mod = encoding.apply(variables, method="score_mod")
    return attend(query, key, value, score_mod, positions)

  def forward_and_backward(params, query, key, value, positions, cotangent):
    out, pull = jax.vjp(
        lambda *x: forward(*x, positions), params, query, key, value
    )
    return out, pull(cotangent)

  return forward_and_backward if backward else forward


def implementation(name: str) -> Callable[..., jax.Array]:
  """Returns `attend` for "materialised" or an implementation of `attention`."""
  if name == MATERIALISED:
    return materialised_attention

  def attend(query, key, value, score_mod, positions):
    return attention(
        query,
        key,
        value,
        score_mod,
        q_positions=positions,
        kv_positions=positions,
        implementation=name,
    )

  return attend


def materialised_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    score_mod: ScoreMod | None,
    positions: jax.Array,
) -> jax.Array:
  """Computes causal attention [B, T, N, H] with the full score matrix.

  Args:
    query, key, value: [B, T, N, H].
    score_mod: static bias, DAPE, DAPE V2 (with its edge="zero") or None.
    positions: [T] int32.

  Raises:
    NotImplementedError: for other score modifiers.
  """
  dtype = jnp.promote_types(query.dtype, jnp.float32)
  scores_BxNxTxS = query.shape[-1] ** -0.5 * jnp.einsum(
      "btnh,bsnh->bnts", query, key, preferred_element_type=dtype
  )
  tile = Tile(positions[:, None], positions[None, :])
  visible_1x1xTxS = tile.visible_mask()[None, None]
  if score_mod is not None:
    function, params = score_mod.function, score_mod.params
    if not isinstance(function, AdditiveBias | DapeTile | DapeV2Tile) or (
        isinstance(function, DapeTile) and function.form != "concat_residual"
    ):
      raise NotImplementedError("not implemented with the full score matrix")
    bias = function.bias(params, tile, dtype)
    bias = None if bias is None else bias[None]
    total = scores_BxNxTxS if bias is None else scores_BxNxTxS + bias
    if isinstance(function, DapeTile | DapeV2Tile):
      inputs = scores_BxNxTxS
      if bias is not None:
        shape = scores_BxNxTxS.shape
        inputs = jnp.concatenate([inputs, jnp.broadcast_to(bias, shape)], 1)
      if isinstance(function, DapeV2Tile):
        inputs = jnp.where(visible_1x1xTxS, inputs, 0)
      total = total + _score_network(function, params, inputs)
    scores_BxNxTxS = total
  lowest = jnp.finfo(dtype).min
  scores_BxNxTxS = jnp.where(visible_1x1xTxS, scores_BxNxTxS, lowest)
  weights = jax.nn.softmax(scores_BxNxTxS, -1)
  return jnp.einsum("bnts,bsnh->btnh", weights.astype(value.dtype), value)


def _score_network(function, params, inputs_BxCxTxS: jax.Array) -> jax.Array:
  hidden_kernel, output_kernel = (
      params[f"{name}_kernel"] for name in ("hidden", "output")
  )
  if isinstance(function, DapeTile):
    linear = lambda x, kernel: jnp.einsum("bcts,ce->bets", x, kernel)
  else:
    pad = function.kernel_size // 2

    def linear(x, kernel_kxCxE):
      kernel_ExCx1xk = kernel_kxCxE.transpose(2, 1, 0)[:, :, None]
      padding = ((0, 0), (pad, pad))
      return jax.lax.conv_general_dilated(x, kernel_ExCx1xk, (1, 1), padding)

  hidden = linear(inputs_BxCxTxS, hidden_kernel)
  hidden = hidden + params["hidden_bias"][None, :, None, None]
  return linear(jax.nn.leaky_relu(hidden, NEGATIVE_SLOPE), output_kernel)
