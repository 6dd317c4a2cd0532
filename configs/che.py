"""Tasks of the Chomsky hierarchy, with the encoder of Ruoss et al. 2023.

  python train.py --workdir=runs/che \
      --config=configs/che.py:task=even_pairs,encoding=dape_kerple_log
  python -m dape_jax.evaluation.che --score=runs/che --lengths=41-500

Arguments behind the colon: task (`python -m dape_jax.evaluation.che --help` lists
them), encoding, form ("encoder", or "decoder" for causal attention; both answer at
placeholders behind the input), max_position (2048 trains and scores on randomized
positions as the paper does, 0 on 0, 1, 2, ...).

The model, optimizer and lengths of arXiv 2305.16843: 5 layers, 8 heads, width 64,
LayerNorm after each sublayer, ReLU, dropout 0.1, Adam 1e-3, batches of 128 of one
length in 1..40, 10,000 steps (their example; DAPE's paper says 200,000). Departures:
the attention's projections have biases, embedded tokens no dropout, and dropout is
off in scoring.

Hardware and time: an accelerator; on 2 CPU cores about 4 steps a second.
"""

import ml_collections

from dape_jax.config_files import (
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
  config = ml_collections.ConfigDict()
  config.seed = 0
  config.model = dict(
      vocab_size=task.vocab_size,
      num_layers=5,
      width=64,
      num_heads=8,
      num_kv_heads=0,
      mlp_width=0,
      encoding=given["encoding"],
      encoding_options=encoding_options(given["encoding"], LENGTH),
      share_encoding=False,
      windows=(0,),
      causal=form == "decoder",
      norm="post",
      activation="relu",
      dropout=0.1,
      num_outputs=task.num_outputs,
      init="ruoss",
      dtype="float32",
      remat="none",
  )
  config.data = dict(task=given["task"], length=LENGTH, lengths_per_batch=1)
  config.optimizer = dict(
      learning_rate=1e-3,
      final_learning_rate=1e-3,
      warmup_steps=0,
      beta1=0.9,
      beta2=0.999,
      eps=1e-8,
      weight_decay=0.0,
      decay="all",
      clip_norm=1.0,
  )
  config.train = dict(
      steps=10_000,
      batch_size=128,
      accumulation=1,
      log_every=100,
      eval_every=1000,
      eval_batches=16,
      checkpoint_every=1000,
      keep_checkpoints=1,
      max_position=whole_number(given, "max_position"),
      loss_mean="row",
  )
  return config
