"""Test cases for every implementation of attention, and comparisons."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np

import dape_jax
from dape_jax.attention import target
from dape_jax.attention.tpu import forward as pallas_tpu
from dape_jax.attention.tpu import v2_forward as pallas_tpu_v2


def documents(*lengths, padding=0):
  """Returns segment ids and positions of documents packed into one row."""
  ids = np.concatenate([np.full(n, i + 1) for i, n in enumerate(lengths)])
  positions = np.concatenate([np.arange(n) for n in lengths])
  zeros = np.zeros(padding, int)
  return np.append(ids, zeros), np.append(positions, zeros)


def plain(batch, heads, head_dim, length, **options):
  """Returns a case: the shapes and arguments of an `attention` call."""
  positions = np.arange(length, dtype=np.int32)
  return dict(
      shapes=(batch, heads, options.pop("kv_heads", heads), head_dim, length),
      arguments=dict(q_positions=positions, kv_positions=positions) | options,
  )


def packed(*rows, window=None):
  """Returns a case with one row per result of `documents`."""
  rows = rows or (documents(70, 1, 49, padding=30), documents(150))
  ids, positions = (np.int32(x) for x in zip(*rows))
  return plain(
      2,
      6,
      8,
      ids.shape[1],
      kv_heads=3,
      q_positions=positions,
      kv_positions=positions,
      q_segment_ids=ids,
      kv_segment_ids=ids,
      window=window,
  )


def cached():
  """Returns a case of 37 new tokens after 60 cached ones.

  53 slots are empty, and one row is padded on the left.
  """
  slots = np.arange(150)
  ids = np.stack([slots < 97, (slots >= 5) & (slots < 97)])
  positions = np.stack([slots, slots - 5]) * ids
  new = slice(60, 97)
  case = plain(
      2,
      3,
      8,
      150,
      q_positions=np.int32(positions[:, new]),
      kv_positions=np.int32(positions),
      q_segment_ids=np.int32(ids[:, new]),
      kv_segment_ids=np.int32(ids),
  )
  return case | {"queries": 37}


CASES = {
    "one_token": plain(2, 1, 64, 1),
    "length_127": plain(2, 3, 64, 127),
    "length_128_of_12_heads": plain(2, 12, 64, 128),
    "length_129_of_dim_128": plain(1, 2, 128, 129),
    "length_1000": plain(1, 2, 16, 1000, kv_heads=1),
    "window": plain(2, 2, 8, 300, window=40),
    "both_directions": plain(2, 2, 8, 150, causal=False),
    "batch_of_8": plain(8, 2, 8, 40),
    "packed": packed(),
    "packed_window": packed(window=20),
    "cached": cached(),
}


def outputs_and_gradients(implementation, name, case, dtype):
  """Returns the output and the gradients of all inputs and parameters."""
  batch, heads, kv_heads, head_dim, length = case["shapes"]
  query, _, _ = cases.qkv(
      0, batch, case.get("queries", length), heads, head_dim, jnp.float32
  )
  _, key, value = cases.qkv(1, batch, length, kv_heads, head_dim, jnp.float32)
  with jax.enable_x64(False):  # The same random numbers in any precision.
    encoding, score_mod = cases.make(name, heads)
  params = {} if score_mod is None else score_mod.params
  sink = jnp.linspace(-1, 1, heads)
  # Inputs are exact in every precision.
  query, key, value = (
      x.astype(jnp.bfloat16).astype(dtype) for x in (query, key, value)
  )
  if dtype == jnp.float64:
    params, sink = jax.tree.map(lambda x: x.astype(jnp.float64), (params, sink))

  @jax.jit
  @functools.partial(jax.grad, argnums=(0, 1, 2, 3, 4), has_aux=True)
  def gradient(params, query, key, value, sink):
    mod = score_mod and score_mod.replace(params=params)
    query, key = encoding.rotate(
        query,
        key,
        case["arguments"]["q_positions"],
        case["arguments"]["kv_positions"],
    )
    out = dape_jax.attention(
        query,
        key,
        value,
        mod,
        sink=sink,
        implementation=implementation,
        **case["arguments"],
    )
    return jnp.sum(jnp.sin(3 * out.astype(sink.dtype))), out

  gradients, out = gradient(params, query, key, value, sink)
  return {"out": out, "gradients": gradients}


def assert_close(actual, expected, tolerance):
  """Asserts that errors are within `tolerance` of each array's maximum."""

  def check(path, a, e):
    a, e = np.float64(a), np.float64(e)
    bound = tolerance * max(abs(e).max(initial=0), 1e-3)
    np.testing.assert_allclose(
        a, e, rtol=0, atol=bound, err_msg=jax.tree_util.keystr(path)
    )

  jax.tree_util.tree_map_with_path(check, actual, expected)


def interpret_kernels(monkeypatch, interpret=True):
  """Makes `attention` choose the TPU kernels, in interpret mode."""
  monkeypatch.setattr(target, "target_platform", lambda: "tpu")
  for module in (pallas_tpu, pallas_tpu_v2):
    function = functools.partial(module.pallas_attention, interpret=interpret)
    monkeypatch.setattr(module, "pallas_attention", function)
