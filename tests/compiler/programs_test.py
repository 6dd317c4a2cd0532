"""Training and evaluation steps compile for TPU, with the real compiler."""

import json

import pytest
import tpu_compiler

_PROGRAM = """
import json
from dape_jax.compiler import programs
from dape_jax.config import (
    DataConfig, ExperimentConfig, ModelConfig, OptimizerConfig, TrainConfig)

config = ExperimentConfig(
    ModelConfig(num_layers=1, width=256, num_heads=4, vocab_size=512,
                remat="full", encoding="dape_kerple_log"),
    DataConfig(length=128), OptimizerConfig(), TrainConfig(batch_size=8))
for eval_length in (0, 4096):
  lowered, _ = programs.lower(config, "v5e:2x2", eval_length)
  compiled = lowered.compile()
  text, memory = compiled.as_text(), compiled.memory_analysis()
  print(json.dumps({
      "temporaries": memory.temp_size_in_bytes,
      "aliased": memory.alias_size_in_bytes,
      "operations": [name for name in (
          "all-gather", "all-reduce", "tpu_custom_call") if name in text]}))
"""


@pytest.fixture(scope="module")
def programs():
  lines = tpu_compiler.output_of(_PROGRAM).splitlines()
  return [json.loads(line) for line in lines[-2:]]


@tpu_compiler.needed
def test_training_only_reduces_gradients(programs):
  training, _ = programs
  # Each chip works on its own windows.
  assert training["operations"] == ["all-reduce", "tpu_custom_call"]
  assert training["temporaries"] < 2**30


@tpu_compiler.needed
def test_evaluation_updates_the_cache_in_place(programs):
  _, evaluation = programs
  assert evaluation["operations"] == ["tpu_custom_call"]
  assert evaluation["aliased"] >= 2 * 4096 * 256 * 2
  assert evaluation["temporaries"] < 2**27
