"""A byte-level language model of Python source, trained at 128 tokens.

  python train.py --config=configs/demo.py:dape_kerple_log --workdir=runs/demo/dape_kerple_log

The argument after the colon is the encoding (default dape_kerple_log), or a
list that the layers cycle through ("rope,nope"). `make demo` trains and
compares rope, kerple_log and dape_kerple_log.

Hardware and time: 1.5 (rope) to 2 minutes (dape_kerple_log) on 2 CPU cores.
Expect a validation loss of 1.9 to 2.1 nats per byte. In evaluation, rope breaks
down beyond 128 tokens and the others do not (docs/results/demo.md).
"""

import ml_collections

from dape_jax.config.files import all_settings, encoding_options

LENGTH = 128


def get_config(encoding: str = "dape_kerple_log") -> ml_collections.ConfigDict:
  return all_settings(
      model=dict(
          vocab_size=384,
          num_layers=2,
          width=128,
          num_heads=4,
          encoding=encoding,
          encoding_options=encoding_options(encoding, LENGTH),
          dtype="float32",  # CPUs are slower in bfloat16
      ),
      data=dict(source="code", length=LENGTH),
      optimizer=dict(
          learning_rate=4e-3, final_learning_rate=4e-4, warmup_steps=30
      ),
      train=dict(
          steps=350,
          batch_size=32,
          log_every=20,
          eval_every=175,
          eval_batches=8,
          checkpoint_every=175,
          keep_checkpoints=1,
      ),
  )
