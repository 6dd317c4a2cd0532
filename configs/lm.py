"""The papers' language models, 125M to 6.7B parameters, on TPU slices or GPUs.

  python train.py --config=configs/lm.py:size=125m,encoding=dape_kerple_log,length=512 \
      --config.data.source=/data/arxiv --workdir=runs/dape_kerple_log

Arguments after the colon: size (125m, 350m, 1.3b, 2.7b, 6.7b), encoding, length
(128, 512, 1024 and 2048 in the papers) and recipe (a paper's optimizer and
batch size: dape, kerple or fire). config.data.source is required: a folder
written by `python -m dape_jax.data.prepare`, in the papers with GPT-2's
tokenizer (--tokenizer=tokenizer.json of the Hugging Face model
openai-community/gpt2).

The mesh shards the state over the chips that the size needs (fsdp in _SIZES)
and the batch over all chips, so the same command trains on any larger slice
whose chip count divides the batch. According to the TPU compiler, every size
fits on 32 chips of v5e, v5p or v6e with 256 rows of up to 2,048 tokens
(docs/results/aot.md). The backward pass recomputes layers (remat="full");
otherwise a step moves more memory, and 1.3b and larger do not fit on v5e.

Hardware and time: 50,000 steps; docs/results/aot.md lists roofline times per
step. To try it on a CPU, pass --config.data.source=code --config.train.steps=2
--config.optimizer.warmup_steps=1 --config.train.batch_size=2.
"""

import ml_collections

from dape_jax.config.files import (
    all_settings,
    choice,
    encoding_options,
    parse_arguments,
    whole_number,
)

DEFAULTS = dict(
    size="125m", encoding="dape_kerple_log", length="512", recipe="dape"
)
VOCAB_SIZE = 50_304  # GPT-2's 50,257, padded to a multiple of 128
STEPS = 50_000
# num_layers, width, num_heads, peak learning rate, fsdp.
_SIZES = {
    "125m": (12, 768, 12, 6e-4, 1),
    "350m": (24, 1024, 16, 3e-4, 1),
    "1.3b": (24, 2048, 16, 2e-4, 8),
    "2.7b": (32, 2560, 32, 1.6e-4, 16),
    "6.7b": (32, 4096, 32, 1.2e-4, 32),
}
# The papers' other settings. KERPLE's and DAPE's are from their released configs.
# FIRE's learning rate, batch size and steps are not verified against its paper
# (arXiv 2310.04418, appendix); its other settings are DAPE's.
_RECIPES = {
    "dape": dict(
        beta2=0.95, weight_decay=0.1, decay="all", final=0.1, batch_size=256
    ),
    "kerple": dict(
        beta2=0.999, weight_decay=0.0, decay="all", final=0.0, batch_size=32
    ),
    "fire": dict(
        beta2=0.95,
        weight_decay=0.1,
        decay="all",
        final=0.1,
        batch_size=256,
        learning_rate=1e-4,
        steps=600_000,
    ),
}


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
  given = parse_arguments(arguments, DEFAULTS)
  num_layers, width, num_heads, learning_rate, fsdp = _SIZES[
      choice(given, "size", tuple(_SIZES))
  ]
  recipe = _RECIPES[choice(given, "recipe", tuple(_RECIPES))]
  length = whole_number(given, "length")
  learning_rate = recipe.get("learning_rate", learning_rate)
  steps = recipe.get("steps", STEPS)
  return all_settings(
      model=dict(
          vocab_size=VOCAB_SIZE,
          num_layers=num_layers,
          width=width,
          num_heads=num_heads,
          encoding=given["encoding"],
          encoding_options=encoding_options(given["encoding"], length),
          init="kerple" if given["recipe"] == "kerple" else "dape",
          dtype="bfloat16",
          remat="full",
      ),
      # As in the papers, windows are cut from the token stream and ignore
      # document boundaries. There is no default source: the built-in ones are
      # too small.
      data=dict(source="", length=length, packing="plain"),
      optimizer=dict(
          learning_rate=learning_rate,
          final_learning_rate=recipe["final"] * learning_rate,
          warmup_steps=steps // 100,
          beta2=recipe["beta2"],
          weight_decay=recipe["weight_decay"],
          decay=recipe["decay"],
      ),
      train=dict(
          steps=steps,
          batch_size=recipe["batch_size"],
          log_every=100,
          eval_every=1000,
          checkpoint_every=1000,
          keep_checkpoints=2,
      ),
      mesh=dict(fsdp=fsdp),
  )
