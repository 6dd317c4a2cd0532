"""The baseline of `materialised` in PyTorch, on the CPU.

Requires PyTorch, an optional dependency: pip install 'dape_jax[bench]'.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F

from dape_jax.encodings.alibi import AlibiTile, alibi_slopes
from dape_jax.encodings.base import PositionalEncoding
from dape_jax.encodings.dape import NEGATIVE_SLOPE, DapeTile
from dape_jax.encodings.fire import EPSILON, FireTile
from dape_jax.encodings.kerple import MINIMUM, KerpleLogTile
from dape_jax.encodings.rope import Rope

_BASES = (AlibiTile, FireTile, KerpleLogTile)


def torch_program(
    encoding: PositionalEncoding,
    params: dict[str, Any],
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    positions: jax.Array,
    cotangent: jax.Array | None = None,
    *,
    threads: int,
) -> Callable[[], list[torch.Tensor]]:
  """Returns the PyTorch equivalent of `materialised.program`.

  Args:
    encoding, params: of the encoding; autograd tracks the parameters.
    query, key, value, cotangent: [B, T, N, H]; without a cotangent only the
      output is computed.
    positions: [T] int32.
    threads: size of PyTorch's thread pool.

  Returns:
    A function without arguments that returns [output, *gradients of query, key,
    value and `jax.tree.leaves(params)`].

  Raises:
    NotImplementedError: the encoding has no PyTorch implementation here.
  """
  score_mod = encoding.apply({"params": params}, method="score_mod")
  function = None if score_mod is None else score_mod.function
  base = getattr(function, "base", function)
  rotates = isinstance(getattr(encoding, "base", encoding), Rope)
  is_other_form = getattr(function, "form", "concat_residual") != (
      "concat_residual"
  )
  if rotates or is_other_form or not isinstance(base, (*_BASES, type(None))):
    raise NotImplementedError("not implemented in PyTorch here")
  torch.set_num_threads(threads)

  def tensor(x):
    out = torch.from_numpy(np.array(x.astype(jnp.float32)))
    dtype = torch.bfloat16 if x.dtype == jnp.bfloat16 else torch.float32
    return out.to(dtype).requires_grad_(cotangent is not None)

  qkv = [tensor(x) for x in (query, key, value)]
  # Tile functions take the score modifier's parameters.
  params = None if score_mod is None else jax.tree.map(tensor, score_mod.params)
  positions = torch.from_numpy(np.array(positions))
  if cotangent is None:
    return lambda: [_attention(*qkv, function, params, positions)]
  d_out = tensor(cotangent).detach()
  leaves = [*qkv, *jax.tree.leaves(params)]

  def forward_and_backward():
    out = _attention(*qkv, function, params, positions)
    return [out, *torch.autograd.grad(out, leaves, d_out)]

  return forward_and_backward


def _attention(query, key, value, function, params, positions):
  """Computes causal attention [B, T, N, H]."""
  q, k, v = (x.transpose(1, 2) for x in (query, key, value))
  scores = (q @ k.transpose(2, 3)).float() * q.shape[-1] ** -0.5
  visible = positions[None, :] <= positions[:, None]
  base = getattr(function, "base", function)
  total = scores
  if base is not None:
    base_params = params if base is function else params["base"]
    bias = _bias(base, base_params, positions)
    total = scores + bias
  if base is not function:
    inputs = scores
    if base is not None:
      inputs = torch.cat([scores, bias.expand(scores.shape)], 1)
    total = total + _score_network(function, params, inputs, visible)
  scores = total.masked_fill(~visible, torch.finfo(total.dtype).min)
  weights = scores.softmax(-1).to(v.dtype)
  return (weights @ v).transpose(1, 2)


def _score_network(function, params, inputs, visible):
  hidden_kernel, hidden_bias, output_kernel = (
      params[name] for name in ("hidden_kernel", "hidden_bias", "output_kernel")
  )
  if isinstance(function, DapeTile):
    inputs = inputs.permute(0, 2, 3, 1)
    hidden = F.linear(inputs, hidden_kernel.T, hidden_bias)
    hidden = F.leaky_relu(hidden, NEGATIVE_SLOPE)
    return F.linear(hidden, output_kernel.T).permute(0, 3, 1, 2)
  padding = (0, function.kernel_size // 2)
  as_filter = lambda kernel_kxCxE: kernel_kxCxE.permute(2, 1, 0).unsqueeze(2)
  inputs = inputs.masked_fill(~visible, 0)
  hidden = F.conv2d(
      inputs, as_filter(hidden_kernel), hidden_bias, padding=padding
  )
  hidden = F.leaky_relu(hidden, NEGATIVE_SLOPE)
  return F.conv2d(hidden, as_filter(output_kernel), padding=padding)


def _bias(function, params, positions):
  """Returns the static bias [N, T, T]."""
  q_positions = positions[:, None].float()
  distances = (positions[:, None] - positions[None, :]).abs().float()
  column = lambda x: x[:, None, None]
  if isinstance(function, AlibiTile):
    slopes = torch.from_numpy(alibi_slopes(function.num_heads)).float()
    return -column(slopes) * distances
  if isinstance(function, KerpleLogTile):
    r1, r2 = (column(params[n].clamp(min=MINIMUM)) for n in ("r1", "r2"))
    return -r1 * torch.log1p(r2 * distances)
  c, threshold = params["c"], (params["m"] * function.threshold).abs()
  normalizer = (c * torch.maximum(q_positions, threshold)).abs().log1p()
  x = (c * distances).abs().log1p() / (normalizer + EPSILON)
  x = x.unsqueeze(-1)
  layers = sum(name.startswith("kernel_") for name in params)
  for k in range(layers):
    x = F.linear(x, params[f"kernel_{k}"].T, params[f"bias_{k}"])
    if k < layers - 1:
      x = F.leaky_relu(x, function.negative_slope)
  return x.permute(2, 0, 1)
