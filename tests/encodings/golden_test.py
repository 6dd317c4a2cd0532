"""The public API matches the numbers of the released PyTorch code.

The files in tests/golden hold inputs, parameters, outputs and gradients
computed in float32 with the released code of DAPE (arXiv 2405.14722,
2410.04798). They change only if that code does; a mismatch is a bug in this
library.
"""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dape_jax
from dape_jax.interop import neox

# These tests take longer to compile than to run.
jit = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)

FILES = sorted(
    path
    for path in (pathlib.Path(__file__).parents[1] / "golden").glob("*.npz")
    if not path.stem.startswith("cope")  # depends on queries: see cope_test.py
)


def load(path):
  with np.load(path) as data:
    arrays = {key: data[key] for key in data.files}
  name = path.stem.rsplit("_h", 1)[0]
  params = {
      key.removeprefix("param."): value
      for key, value in arrays.items()
      if key.startswith("param.")
  }
  return name, json.loads(str(arrays["meta"])), arrays, params


def set_up(path):
  name, meta, arrays, tensors = load(path)
  params = neox.encoding_params(name, tensors)
  encoding = dape_jax.encodings.make(
      name, num_heads=meta["heads"], **neox.encoding_options(name, tensors)
  )

  def score_mod(params):
    return encoding.apply({"params": params}, method="score_mod")

  q, k, v, cotangent = (
      jnp.asarray(arrays[key]).transpose(0, 2, 1, 3)
      for key in ("q", "k", "v", "cotangent")
  )
  return name, arrays, tensors, params, score_mod, (q, k, v), cotangent


def test_all_files_are_here():
  assert len(FILES) == 20


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_context_and_gradients(path):
  name, arrays, tensors, params, score_mod, qkv, cotangent = set_up(path)
  positions = jnp.arange(qkv[0].shape[1])

  @jit
  def forward_and_gradients(params, qkv):
    def objective(params, qkv):
      out = dape_jax.attention(
          *qkv,
          score_mod(params),
          q_positions=positions,
          kv_positions=positions,
      )
      return jnp.sum(out * cotangent), out

    return jax.value_and_grad(objective, (0, 1), has_aux=True)(params, qkv)

  (_, out), (grad_params, grad_qkv) = forward_and_gradients(params, qkv)
  np.testing.assert_allclose(
      out.transpose(0, 2, 1, 3), arrays["context"], rtol=0, atol=2e-5
  )

  released = {
      key.removeprefix("grad."): arrays[key]
      for key in arrays
      if key.startswith("grad.")
  }
  frozen = {"init_L": np.zeros(())}  # has no gradient in the files or here
  ours = grad_params
  theirs = (
      neox.encoding_params(
          name,
          {key: released.get(key, frozen.get(key)) for key in tensors},
      )
      if tensors
      else {}
  )
  largest = max((np.abs(x).max() for x in released.values()), default=1.0)
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(
          a, b, rtol=0, atol=1e-4 * largest
      ),
      ours,
      theirs,
  )
  for gradient, key in zip(grad_qkv, ("dq", "dk", "dv")):
    np.testing.assert_allclose(
        gradient.transpose(0, 2, 1, 3),
        arrays[key],
        rtol=0,
        atol=1e-4 * np.abs(arrays[key]).max(),
    )


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_biased_scores(path):
  _, arrays, _, params, score_mod, (q, k, _), _ = set_up(path)
  length = q.shape[1]
  positions = jnp.arange(length)
  mod = score_mod(params)
  scores = jnp.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
  halo = mod.halo
  pad = [(halo, halo)]
  scores = jnp.pad(scores, [(0, 0)] * 3 + pad)
  kv_positions = jnp.pad(positions, pad, constant_values=-1)
  tile = dape_jax.Tile(positions[:, None], kv_positions[None, :])
  ours = jax.vmap(lambda s: mod.apply(params, s, tile))(scores)
  # Up to a constant per row: the network's output bias is omitted.
  difference = np.asarray(ours) - arrays["biased_scores"]
  for row in range(length):
    visible = difference[:, :, row, : row + 1]
    spread = visible - visible[..., :1]
    np.testing.assert_allclose(spread, 0, atol=2e-5)
