"""T5's buckets and ALiBi's slopes against Hugging Face transformers."""

import functools
import os

import jax
import numpy as np
import pytest

import dape_jax
from dape_jax import encodings
from dape_jax.encodings.t5 import T5


# Imported only where a test runs: they take seconds.
@pytest.fixture(scope="module")
def torch():
  return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def transformers(torch):
  del torch
  os.environ.setdefault("HF_HUB_OFFLINE", "1")
  return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def t5_attention(transformers):
  del transformers
  from transformers.models.t5.modeling_t5 import T5Attention

  return T5Attention


@functools.partial(jax.jit, static_argnums=0)
def bias(encoding, table, q_positions, kv_positions):
  variables = {"params": {"table": table}}
  return encoding.apply(variables, q_positions, kv_positions, method="bias")


@pytest.mark.parametrize("bidirectional", [False, True])
def test_buckets(torch, t5_attention, bidirectional):
  distances = np.arange(-300, 301)
  for num_buckets, max_distance in (
      (32, 128),
      (16, 128),
      (20, 300),
      (64, 1000),
  ):
    # With table row k = k, the bias is the bucket.
    table = np.arange(num_buckets, dtype=np.float32)[:, None]
    encoding = T5(
        num_heads=1,
        num_buckets=num_buckets,
        max_distance=max_distance,
        bidirectional=bidirectional,
    )
    ours = bias(encoding, table, np.array([300]), 300 + distances)
    theirs = t5_attention._relative_position_bucket(
        torch.from_numpy(distances),
        bidirectional=bidirectional,
        num_buckets=num_buckets,
        max_distance=max_distance,
    )
    np.testing.assert_array_equal(ours[0, 0], theirs.numpy())


@pytest.mark.parametrize("bidirectional", [False, True])
def test_bias(torch, transformers, t5_attention, bidirectional):
  config = transformers.T5Config(
      d_model=12, d_kv=4, num_heads=3, is_decoder=not bidirectional
  )
  theirs = t5_attention(config, has_relative_attention_bias=True)
  table = theirs.relative_attention_bias.weight.detach().numpy()
  with torch.no_grad():
    expected = theirs.compute_bias(200, 200)[0].numpy()
  encoding = T5(num_heads=3, bidirectional=bidirectional)
  positions = np.arange(200)
  ours = bias(encoding, table, positions, positions)
  np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("num_heads", [6, 8, 12, 20, 56])
def test_alibi_of_bloom(torch, transformers, num_heads):
  del transformers
  from transformers.models.bloom.modeling_bloom import build_alibi_tensor

  mask = torch.ones(1, 50, dtype=torch.long)
  theirs = build_alibi_tensor(mask, num_heads, torch.float32)[:, 0].numpy()
  slopes = encodings.alibi_slopes(num_heads)
  np.testing.assert_allclose(slopes, theirs[:, 1], rtol=1e-6)
  # BLOOM counts from the first key: equal up to a constant per row.
  positions = np.arange(50)
  ours = dape_jax.Alibi(num_heads=num_heads).apply(
      {}, positions, positions, method="bias"
  )
  np.testing.assert_allclose(
      ours[:, -1] - ours[:, -1, :1], theirs, rtol=1e-5, atol=1e-5
  )
