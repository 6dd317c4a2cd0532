"""A model that trains in seconds, for the tests of the training package."""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
  return config_dict.create(
      model=dict(
          num_layers=2,
          width=32,
          num_heads=2,
          encoding="dape_kerple_log",
          dtype="float32",
      ),
      data=dict(source="stdlib", dir="", length=32),
      optimizer=dict(
          learning_rate=1e-2,
          warmup_steps=2,
          clip_norm=1.0,
          # With the usual 1e-8, Adam amplifies rounding errors to full updates,
          # so that sums in another order could not be compared.
          eps=1e-4,
      ),
      train=dict(
          steps=40,
          batch_size=8,
          accumulation=1,
          log_every=1,
          eval_every=20,
          eval_batches=1,
          checkpoint_every=10,
      ),
      mesh=dict(data=-1, fsdp=1, context=1, ring=False),
      seed=0,
  )
