"""The batch size is chosen from the free memory."""

import types

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import psutil
import pytest

from dape_jax.config import ModelConfig
from dape_jax.evaluation import memory
from dape_jax.evaluation.perplexity import make_step
from dape_jax.models import Transformer


@pytest.fixture(scope="module")
def step_model_params():
  config = ModelConfig(
      vocab_size=32, num_layers=1, width=16, num_heads=2, dtype="float32"
  )
  model = Transformer(config)
  tokens = jnp.zeros((1, 4), jnp.int32)
  params = jax.jit(model.init)(jax.random.key(0), tokens)["params"]
  return make_step(model), model, params


def test_batch_size_follows_from_memory_per_text(
    step_model_params, monkeypatch
):
  step, model, params = step_model_params
  per_text = memory.step_bytes(step, model, params, 16, 64)
  keys_and_values = 2 * 64 * 16 * 4
  assert keys_and_values < per_text < 1e6
  free = 9 * per_text / memory.FRACTION
  monkeypatch.setattr(memory, "free_bytes", lambda: free)
  choose = lambda requested, longest, num_texts: memory.BatchSize(
      requested, 16
  )(step, model, params, longest, num_texts)
  arguments = (0, 60, 100), (0, 60, 2), (0, 60, 1), (5, 60, 100), (5, 60, 3)
  assert [choose(*a) for a in arguments] == [8, 2, 1, 5, 3]
  free = per_text / 100
  assert choose(0, 60, 100) == 1


def test_measurements_are_reused_for_shorter_texts(step_model_params):
  step, model, params = step_model_params
  measured = []

  class Counting:

    def lower(self, *arguments):
      measured.append(arguments[1].capacity)
      return step.lower(*arguments)

  choose = memory.BatchSize(0, 16)
  for longest in (30, 16, 9, 4, 30):
    assert choose(Counting(), model, params, longest, 8) == 8
  assert measured == [32]


@hypothesis.given(st.integers(0, 300), st.integers(1, 3000))
def test_batches_are_powers_of_two_and_waste_little(fitting, num_texts):
  rows = memory.even_rows(fitting, num_texts)
  assert rows & (rows - 1) == 0
  assert 1 <= rows <= max(1, min(fitting, num_texts))
  assert -(-num_texts // rows) * rows <= 1.25 * num_texts


def test_free_memory_of_this_machine():
  assert 2**20 < memory.free_bytes() < 2**50


def test_free_memory_in_a_container(tmp_path, monkeypatch):
  machine = types.SimpleNamespace(available=5000 * 1024)
  monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
  assert memory.free_host_bytes(tmp_path / "none") == 5000 * 1024
  (tmp_path / "memory.current").write_text("1000000\n")
  (tmp_path / "memory.stat").write_text("anon 700000\ninactive_file 300000\n")
  (tmp_path / "memory.max").write_text("max\n")
  assert memory.free_host_bytes(tmp_path) == 5000 * 1024
  (tmp_path / "memory.max").write_text("1500000\n")
  assert memory.free_host_bytes(tmp_path) == 800000
