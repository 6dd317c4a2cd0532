"""A language model of 1.8M parameters on Python source, trained at 128 tokens.

  python train.py --config=configs/code_lm.py:dape_kerple_log --workdir=runs/code_lm

The text behind the colon is the encoding (default dape_kerple_log). `make code-lm`
trains eleven encodings with three seeds and evaluates them to 16,384 tokens.

Hardware and time: 2 CPU cores, 4 to 6 minutes.
"""

import ml_collections

from dape_jax import encodings

LENGTH = 128


def get_config(encoding: str = "dape_kerple_log") -> ml_collections.ConfigDict:
  config = ml_collections.ConfigDict()
  config.seed = 0

  options = encodings.options(encoding)
  if "train_length" in options:
    options["train_length"] = LENGTH

  config.model = dict(
      vocab_size=384,
      num_layers=2,
      width=256,
      num_heads=4,
      num_kv_heads=0,
      mlp_width=0,
      encoding=encoding,
      encoding_options=options,
      share_encoding=False,
      windows=(0,),
      init="dape",
      dtype="float32",  # CPUs are slower in bfloat16
      remat="none",
  )
  config.data = dict(
      source="code",
      tokenizer="bytes",
      dir="",
      length=LENGTH,
      packing="segments",
  )
  config.optimizer = dict(
      learning_rate=3e-3,
      final_learning_rate=3e-4,
      warmup_steps=40,
      beta1=0.9,
      beta2=0.95,
      eps=1e-8,
      weight_decay=0.1,
      decay="matrices",
      clip_norm=1.0,
  )
  config.train = dict(
      steps=400,
      batch_size=32,
      accumulation=1,
      log_every=20,
      eval_every=100,
      eval_batches=8,
      checkpoint_every=100,
      keep_checkpoints=1,
      max_position=0,
  )
  return config
