"""A byte-level language model of Python source, trained at 128 tokens.

  python train.py --config=configs/demo.py:dape_kerple_log --workdir=runs/demo/dape_kerple_log

The text behind the colon is the encoding (default dape_kerple_log), or several that
the layers take in turn ("rope,nope"). `make demo` trains rope, kerple_log and
dape_kerple_log and evaluates them together.

Hardware and time: 2 CPU cores, 1.5 minutes (rope) to 2 (dape_kerple_log).
Expect a validation loss of 1.9 to 2.1 nats per byte; evaluated, rope breaks beyond
128 tokens and the others do not (docs/results/demo.md).
"""

import ml_collections

from dape_jax import encodings

LENGTH = 128


def get_config(encoding: str = "dape_kerple_log") -> ml_collections.ConfigDict:
  config = ml_collections.ConfigDict()
  config.seed = 0

  names = [name.strip() for name in encoding.split(",")]
  # Of several encodings, what they agree on; each has its own of the rest.
  defaults = [encodings.options(name) for name in names]
  options = {
      option: value
      for option, value in defaults[0].items()
      if all(other.get(option, value) == value for other in defaults)
  }
  if "train_length" in options:
    options["train_length"] = LENGTH

  config.model = dict(
      vocab_size=384,
      num_layers=2,
      width=128,
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
      learning_rate=4e-3,
      final_learning_rate=4e-4,
      warmup_steps=30,
      beta1=0.9,
      beta2=0.95,
      eps=1e-8,
      weight_decay=0.1,
      decay="matrices",
      clip_norm=1.0,
  )
  config.train = dict(
      steps=350,
      batch_size=32,
      accumulation=1,
      log_every=20,
      eval_every=175,
      eval_batches=8,
      checkpoint_every=175,
      keep_checkpoints=1,
      max_position=0,
  )
  return config
