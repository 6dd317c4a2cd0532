"""The transformer in float64 NumPy."""

import jax
import numpy as np


def layer_norm(x_BxTxD, params):
  centered = x_BxTxD - x_BxTxD.mean(-1, keepdims=True)
  scaled = centered / np.sqrt(x_BxTxD.var(-1, keepdims=True) + 1e-5)
  return scaled * params["scale"] + params["bias"]


def activated(config, x):
  if config.activation == "relu":
    return np.maximum(x, 0)
  inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
  return x * (1 + np.tanh(inner)) / 2


def kerple_log(params, distances_BxTxT):
  """Returns the bias of each head, [B, N, T, T]."""
  distances_Bx1xTxT = distances_BxTxT[:, None]
  r1_N, r2_N = (np.maximum(params[r], 0.01) for r in ("r1", "r2"))
  r1, r2 = r1_N[:, None, None], r2_N[:, None, None]
  return -r1 * np.log(1 + r2 * distances_Bx1xTxT)


def expected_logits(config, params, tokens, segment_ids, positions):
  """Returns the logits in float64."""
  params = jax.tree.map(np.float64, params)
  x_BxTxD = params["embedding"][tokens]
  seen_BxTxT = segment_ids[:, :, None] == segment_ids[:, None, :]
  seen_BxTxT &= segment_ids[:, None, :] > 0
  differences_BxTxT = positions[:, :, None] - positions[:, None, :]
  if config.causal:
    seen_BxTxT &= differences_BxTxT >= 0
  pre = config.norm == "pre"
  for number in range(config.num_layers):
    layer = jax.tree.map(lambda p, n=number: p[n], params["layers"])
    own = layer["attention"]

    def attend(x, own=own):
      q, k, v = (
          np.einsum("btd,dnh->bnth", x, own[name]["kernel"])
          + own[name]["bias"][:, None]
          for name in ("query", "key", "value")
      )
      scores = np.einsum("bnth,bnsh->bnts", q, k) / np.sqrt(q.shape[-1])
      scores += kerple_log(own["encoding"], abs(differences_BxTxT))
      scores = np.where(seen_BxTxT[:, None], scores, -1e30)
      weights = np.exp(scores - scores.max(-1, keepdims=True))
      weights /= weights.sum(-1, keepdims=True)
      out = np.einsum("bnts,bnsh->btnh", weights, v)
      output = own["output"]
      return np.einsum("btnh,nhd->btd", out, output["kernel"]) + output["bias"]

    def feed_forward(x, mlp=layer["mlp"]):
      hidden = x @ mlp["up"]["kernel"] + mlp["up"]["bias"]
      hidden = activated(config, hidden)
      return hidden @ mlp["down"]["kernel"] + mlp["down"]["bias"]

    for sublayer, norm in (
        (attend, layer["attention_norm"]),
        (feed_forward, layer["mlp_norm"]),
    ):
      if pre:
        x_BxTxD = x_BxTxD + sublayer(layer_norm(x_BxTxD, norm))
      else:
        x_BxTxD = layer_norm(x_BxTxD + sublayer(x_BxTxD), norm)
  if pre:
    x_BxTxD = layer_norm(x_BxTxD, params["final_norm"])
  return x_BxTxD @ params["head"]["kernel"]
