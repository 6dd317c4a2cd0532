"""Tasks of the Chomsky hierarchy, with the encoder of Ruoss et al. 2023.

  python train.py --workdir=runs/che \
      --config=configs/che.py:task=even_pairs,encoding=dape_kerple_log
  python -m dape_jax.studies.tasks --score=runs/che --lengths=41-500

Arguments after the colon: task (`python -m dape_jax.studies.tasks --help` lists
them), encoding, form ("encoder", or "decoder" for causal attention; both answer
at placeholders after the input) and max_position (2048 uses randomized
positions in training and scoring, as in the paper; 0 uses 0, 1, 2, ...).

Model, optimizer and lengths follow arXiv 2305.16843: 5 layers, 8 heads, width
64, LayerNorm after each sublayer, ReLU, dropout 0.1, Adam at 1e-3, batches of
128 problems of one length in 1..40, and 10,000 steps (their example; the DAPE
paper uses 200,000). Departures: attention projections have biases, and dropout
is not applied to embeddings or in scoring.

Hardware and time: use an accelerator; 2 CPU cores run about 4 steps per second.
"""

import ml_collections

from dape_jax.config.files import (
    all_settings,
    choice,
    encoding_options,
    parse_arguments,
    whole_number,
)
from dape_jax.data import tasks

LENGTH = 40
DEFAULTS = dict(
    task="even_pairs",
    encoding="dape_kerple_log",
    form="encoder",
    max_position="0",
)


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
  given = parse_arguments(arguments, DEFAULTS)
  form = choice(given, "form", ("encoder", "decoder"))
  task = tasks.make(given["task"])
  return all_settings(
      model=dict(
          vocab_size=task.vocab_size,
          num_outputs=task.num_outputs,
          num_layers=5,
          width=64,
          num_heads=8,
          encoding=given["encoding"],
          encoding_options=encoding_options(given["encoding"], LENGTH),
          causal=form == "decoder",
          norm="post",
          activation="relu",
          dropout=0.1,
          init="ruoss",
          dtype="float32",
      ),
      data=dict(task=given["task"], length=LENGTH),
      optimizer=dict(
          learning_rate=1e-3,
          final_learning_rate=1e-3,
          warmup_steps=0,
          beta2=0.999,
          weight_decay=0.0,
          decay="all",
      ),
      train=dict(
          steps=10_000,
          batch_size=128,
          log_every=100,
          eval_every=1000,
          eval_batches=16,
          checkpoint_every=1000,
          keep_checkpoints=1,
          max_position=whole_number(given, "max_position"),
          loss_mean="row",
      ),
  )
