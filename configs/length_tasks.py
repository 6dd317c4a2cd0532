"""Length extrapolation of a small model on generated tasks.

  python train.py --workdir=runs/copy \
      --config=configs/length_tasks.py:task=copy,encoding=dape_kerple_log
  python -m dape_jax.studies.tasks --score=runs/copy --times=1,2,4,8

Arguments after the colon: task and encoding. `make length-tasks` compares
twelve encodings on six tasks.

Tasks of the Chomsky hierarchy, such as bucket sort, use an encoder that answers
at placeholders; all others use a decoder.

Hardware and time: 20 to 60 seconds on 2 CPU cores.
"""

import ml_collections

from dape_jax.config.files import (
    all_settings,
    encoding_options,
    parse_arguments,
)
from dape_jax.data import tasks

DEFAULTS = dict(task="even_pairs", encoding="dape_kerple_log")
# Length of the longest training problems.
LENGTHS = {
    "flip_flop": 32,
    "passkey": 32,
    "needle_single": 64,
    "needle_multi_key": 64,
    "needle_multi_value": 64,
}
DEFAULT_LENGTH = 16


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
  given = parse_arguments(arguments, DEFAULTS)
  task = tasks.make(given["task"])
  length = LENGTHS.get(given["task"], DEFAULT_LENGTH)
  options = encoding_options(given["encoding"], task.row_length(length))
  return all_settings(
      model=dict(
          vocab_size=task.vocab_size,
          num_outputs=task.num_outputs,
          num_layers=2,
          width=64,
          num_heads=4,
          encoding=given["encoding"],
          encoding_options=options,
          causal=given["task"] not in tasks.CHE_TASKS,
          dtype="float32",
      ),
      data=dict(task=given["task"], length=length, lengths_per_batch=32),
      optimizer=dict(
          learning_rate=1e-3,
          final_learning_rate=1e-3,
          warmup_steps=50,
          beta2=0.999,
          weight_decay=0.0,
      ),
      train=dict(
          steps=1000,
          batch_size=32,
          log_every=100,
          eval_every=0,
          eval_batches=4,
          checkpoint_every=0,
          keep_checkpoints=1,
      ),
  )
