"""Encodings inside a Flax NNX model, as the README shows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import dape_jax
from dape_jax import attend, encodings


class SelfAttention(nnx.Module):

  def __init__(self, name, rngs):
    encoding = encodings.make(name, num_heads=2)
    self.qkv = nnx.Linear(8, 24, rngs=rngs)
    self.encoding = nnx.bridge.ToNNX(encoding, rngs=rngs)
    x = jnp.ones((1, 1, 8))
    nnx.bridge.lazy_init(self.encoding, x, *self.heads(x), method=attend)

  def heads(self, x):
    shape = (*x.shape[:2], 2, 4)
    return [y.reshape(shape) for y in jnp.split(self.qkv(x), 3, axis=-1)]

  def __call__(self, x):
    return self.encoding(x, *self.heads(x), method=attend)


@pytest.mark.parametrize("name", ["dape_fox", "dape_v2_kerple_log", "rope"])
def test_nnx_module_equals_the_linen_module(name):
  model = SelfAttention(name, nnx.Rngs(0))
  x = jax.random.normal(jax.random.key(1), (2, 5, 8))
  names = ("hidden_kernel", "hidden_bias", "output_kernel", "base")
  state = nnx.to_pure_dict(nnx.state(model.encoding, nnx.Param))
  assert set(state) <= set(names)
  assert bool(state) == name.startswith("dape")

  encoding = encodings.make(name, num_heads=2)
  arguments = x, *model.heads(x)
  expected = encoding.apply({"params": state}, *arguments, method=attend)
  np.testing.assert_allclose(model(x), expected, atol=1e-6)

  @nnx.jit
  def gradient(model, x):
    return nnx.grad(lambda model: jnp.sum(model(x) ** 2))(model)

  ours = nnx.to_pure_dict(gradient(model, x))
  assert set(ours.get("encoding", {})) == set(state)
  assert all(g.any() for g in jax.tree.leaves(ours["qkv"]["kernel"]))
  params = jax.tree.leaves(ours.get("encoding", {}))
  assert all(np.isfinite(g).all() and g.any() for g in params)


def test_init_through_attend_creates_all_parameters():
  encoding = dape_jax.Dape(dape_jax.encodings.Fox(num_heads=2), width=3)
  x, heads = jnp.ones((1, 1, 8)), jnp.ones((1, 1, 2, 4))
  variables = encoding.init(
      jax.random.key(0), x, heads, heads, heads, method=attend
  )
  assert {"base", "hidden_kernel"} <= set(variables["params"])
  assert variables["params"]["base"]["kernel"].shape == (8, 2)
