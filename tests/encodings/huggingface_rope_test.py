"""RoPE and its scaled forms against Hugging Face transformers."""

import types

import numpy as np
import pytest

import dape_jax
from dape_jax.encodings.rope_scaling import (
    RopeDynamicNtk,
    RopeNtk,
    RopePi,
    RopeYarn,
)

HEAD_DIM = 64


@pytest.fixture(scope="module")
def hf():
  """torch, ROPE_INIT_FUNCTIONS, and the llama and GPT-NeoX files."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("HF_HUB_OFFLINE", "1")
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers import GPTNeoXConfig, LlamaConfig, modeling_rope_utils
    from transformers.models.gpt_neox import modeling_gpt_neox
    from transformers.models.llama import modeling_llama

    yield types.SimpleNamespace(
        torch=torch,
        functions=modeling_rope_utils.ROPE_INIT_FUNCTIONS,
        LlamaConfig=LlamaConfig,
        llama=modeling_llama,
        GPTNeoXConfig=GPTNeoXConfig,
        neox=modeling_gpt_neox,
    )


def inverse_frequencies(hf, kind, length=None, train_length=512, **parameters):
  parameters = {"rope_theta": 10000.0, **parameters}
  config = hf.LlamaConfig(
      hidden_size=4 * HEAD_DIM,
      num_attention_heads=4,
      max_position_embeddings=train_length,
      rope_parameters={"rope_type": kind, **parameters},
  )
  frequencies, scale = hf.functions[kind](config, seq_len=length)
  return frequencies.numpy(), scale


def check(encoding, expected, dim=HEAD_DIM):
  frequencies, scale = expected
  assert frequencies.shape == (dim // 2,)
  np.testing.assert_allclose(encoding.frequencies(dim), frequencies, rtol=2e-6)
  np.testing.assert_allclose(encoding.magnitude(), scale, rtol=1e-6)


def test_linear(hf):
  check(RopePi(1, factor=4.0), inverse_frequencies(hf, "linear", factor=4.0))


@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_dynamic(hf, factor):
  for length in (100, 512, 700, 8192):
    expected = inverse_frequencies(hf, "dynamic", length, factor=factor)
    check(RopeDynamicNtk(1, factor=factor, length=length), expected)


def test_ntk_is_dynamic_at_the_length_of_its_factor(hf):
  expected = inverse_frequencies(hf, "dynamic", 8 * 512, factor=1.0)
  check(RopeNtk(1, factor=8.0), expected)


@pytest.mark.parametrize("train_length", [64, 512, 4096])
@pytest.mark.parametrize("factor", [2.0, 16.0])
def test_yarn(hf, train_length, factor):
  expected = inverse_frequencies(
      hf,
      "yarn",
      factor=factor,
      original_max_position_embeddings=train_length,
      train_length=int(train_length * factor),
  )
  check(RopeYarn(1, factor=factor, train_length=train_length), expected)


def test_yarn_with_other_betas_base_and_partial_rotation(hf):
  expected = inverse_frequencies(
      hf,
      "yarn",
      factor=4.0,
      original_max_position_embeddings=2048,
      train_length=8192,
      rope_theta=500_000.0,
      beta_fast=20.0,
      beta_slow=2.0,
      partial_rotary_factor=0.5,
  )
  yarn = RopeYarn(
      1,
      rope_theta=500_000.0,
      fraction=0.5,
      train_length=2048,
      beta_fast=20.0,
      beta_slow=2.0,
  )
  check(yarn, expected, dim=yarn.turned_channels(HEAD_DIM))


def turned_by_huggingface(hf, module, config, embedding, query, key, positions):
  torch = hf.torch
  cos, sin = embedding(config)(torch.tensor(query), torch.tensor(positions))
  heads_first = lambda x: torch.tensor(x).transpose(1, 2)
  turned = module.apply_rotary_pos_emb(
      heads_first(query), heads_first(key), cos, sin
  )
  return [x.transpose(1, 2).numpy() for x in turned]


def test_rotation_of_llama_and_partial_rotation_of_gpt_neox(hf):
  generator = np.random.default_rng(0)
  query = generator.normal(size=(2, 6, 4, HEAD_DIM)).astype(np.float32)
  key = generator.normal(size=(2, 6, 2, HEAD_DIM)).astype(np.float32)
  positions = generator.integers(0, 500, (2, 6)).astype(np.int32)
  llama = hf.LlamaConfig(hidden_size=4 * HEAD_DIM, num_attention_heads=4)
  neox = hf.GPTNeoXConfig(
      hidden_size=4 * HEAD_DIM,
      num_attention_heads=4,
      rope_parameters={
          "rope_type": "default",
          "rope_theta": 10000.0,
          "partial_rotary_factor": 0.25,
      },
  )
  for module, config, embedding, fraction in (
      (hf.llama, llama, hf.llama.LlamaRotaryEmbedding, 1.0),
      (hf.neox, neox, hf.neox.GPTNeoXRotaryEmbedding, 0.25),
  ):
    expected = turned_by_huggingface(
        hf, module, config, embedding, query, key, positions
    )
    encoding = dape_jax.Rope(num_heads=4, fraction=fraction)
    ours = encoding.rotate(query, key, positions, positions)
    for a, b in zip(ours, expected):
      np.testing.assert_allclose(a, b, atol=1e-4)  # its angles are float32
