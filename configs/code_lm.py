"""A 1.8M-parameter language model of Python source, trained at 128 tokens.

  python train.py --config=configs/code_lm.py:dape_kerple_log --workdir=runs/code_lm

The argument after the colon is the encoding (default dape_kerple_log). `make
code-lm` trains eleven encodings with three seeds each and evaluates them up to
16,384 tokens.

Hardware and time: 5 to 9 minutes on one CPU core.
"""

import ml_collections

from dape_jax.config.files import all_settings, encoding_options

LENGTH = 128


def get_config(encoding: str = "dape_kerple_log") -> ml_collections.ConfigDict:
  return all_settings(
      model=dict(
          vocab_size=384,
          num_layers=2,
          width=256,
          num_heads=4,
          encoding=encoding,
          encoding_options=encoding_options(encoding, LENGTH),
          dtype="float32",  # CPUs are slower in bfloat16
      ),
      data=dict(source="code", length=LENGTH),
      optimizer=dict(
          learning_rate=3e-3, final_learning_rate=3e-4, warmup_steps=40
      ),
      train=dict(
          steps=400,
          batch_size=32,
          log_every=20,
          eval_every=100,
          eval_batches=8,
          checkpoint_every=100,
          keep_checkpoints=1,
      ),
  )
