"""Settings of an experiment: frozen, validated once, stored in checkpoints.

Config files (`configs/*.py`) return an `ml_collections.ConfigDict` with the
same fields, which `config_dict.experiment_from_dict` turns into these
dataclasses. Every message names the field.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from dape_jax.errors import ConfigError, did_you_mean


def _require(condition: bool, field: str, value: Any, fix: str) -> None:
  if not condition:
    raise ConfigError(f"config.{field}={value!r}: {fix}")


def _require_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
  if value not in choices:
    raise ConfigError(
        f"config.{field}={value!r} is unknown.{did_you_mean(value, choices)}"
    )


def _require_finite(section: str, config: Any, *names: str) -> None:
  for name in names:
    value = getattr(config, name)
    _require(math.isfinite(value), f"{section}.{name}", value, "not finite.")


def _require_positive(section: str, config: Any, *names: str) -> None:
  for name in names:
    value = getattr(config, name)
    _require(value > 0, f"{section}.{name}", value, "must be greater than 0.")


def _require_not_negative(section: str, config: Any, *names: str) -> None:
  for name in names:
    value = getattr(config, name)
    _require(value >= 0, f"{section}.{name}", value, "must be 0 or more.")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Decoder language model (models/transformer.py).

  Attributes:
    vocab_size: rows of the embedding and of the output head.
    num_layers: number of blocks.
    width: size D of the residual stream; a multiple of num_heads.
    num_heads: query heads N.
    num_kv_heads: key/value heads K, a divisor of num_heads; 0 means num_heads.
    mlp_width: hidden size F of the feed-forward; 0 means 4 * width.
    encoding: registry name of the position encoding; or several, joined by
      commas, that the layers take in turn ("rope,rope,rope,nope").
    encoding_options: options of that encoding (see `encodings.options`); of
      several, each takes those that it has.
    share_encoding: one set of encoding parameters for all layers. Absolute
      encodings are one for the model in any case, with their modifiers.
    windows: of attention, in tokens, that the layers take in turn; 0 is none.
    init: "dape" (small init, arXiv 2405.14722's code) or "kerple" (GPT-2's).
    dtype: compute dtype of activations; parameters are float32 always.
    remat: what the backward pass recomputes: "none", "dots" (keep matrix
      products without a batch dimension) or "full" (keep only block inputs).
  """

  vocab_size: int = 384
  num_layers: int = 12
  width: int = 768
  num_heads: int = 12
  num_kv_heads: int = 0
  mlp_width: int = 0
  encoding: str = "dape_kerple_log"
  encoding_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  share_encoding: bool = False
  windows: tuple[int, ...] = (0,)
  init: str = "dape"
  dtype: str = "bfloat16"
  remat: str = "none"

  def __post_init__(self):
    _require_positive(
        "model", self, "vocab_size", "num_layers", "width", "num_heads"
    )
    _require_not_negative("model", self, "num_kv_heads", "mlp_width")
    _require(
        self.width % self.num_heads == 0,
        "model.num_heads",
        self.num_heads,
        f"does not divide config.model.width={self.width}; choose a divisor.",
    )
    kv_heads = self.num_kv_heads or self.num_heads
    fits = isinstance(self.windows, tuple | list) and all(
        type(window) is int and window >= 0 for window in self.windows
    )
    _require(
        fits and len(self.windows) > 0,
        "model.windows",
        self.windows,
        "must be a tuple of numbers of tokens, 0 for none.",
    )
    object.__setattr__(self, "windows", tuple(self.windows))
    _require(
        self.num_layers % len(self.layer_kinds) == 0,
        "model.num_layers",
        self.num_layers,
        f"encodings and windows repeat after {len(self.layer_kinds)} layers;"
        " choose a multiple.",
    )
    _require(
        not self.share_encoding or len(self.encodings) == 1,
        "model.share_encoding",
        self.share_encoding,
        "needs one encoding, of which all layers share the parameters.",
    )
    _require(
        self.num_heads % kv_heads == 0,
        "model.num_kv_heads",
        self.num_kv_heads,
        f"does not divide config.model.num_heads={self.num_heads}; choose a"
        " divisor (0 means one key/value head per query head).",
    )
    _require_choice("model.init", self.init, ("dape", "kerple"))
    _require_choice("model.dtype", self.dtype, ("bfloat16", "float32"))
    _require_choice("model.remat", self.remat, ("none", "dots", "full"))

  @property
  def encodings(self) -> tuple[str, ...]:
    """Returns the names that the layers take in turn."""
    return tuple(name.strip() for name in self.encoding.split(","))

  @property
  def layer_kinds(self) -> tuple[tuple[str, int], ...]:
    """Returns encoding and window of each layer until both repeat."""
    period = math.lcm(len(self.encodings), len(self.windows))
    return tuple(
        (
            self.encodings[i % len(self.encodings)],
            self.windows[i % len(self.windows)],
        )
        for i in range(period)
    )

  def __hash__(self):
    # Modules that hold a config are hashed (jit's static arguments).
    values = (getattr(self, f.name) for f in dataclasses.fields(self))
    return hash(
        tuple(
            tuple(sorted(v.items())) if isinstance(v, Mapping) else v
            for v in values
        )
    )


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """Training text.

  Attributes:
    source: "code" (the embedded code corpus) or "stdlib" (the standard library
      alone).
    tokenizer: "bytes".
    dir: folder for prepared data; "" means $DAPE_JAX_DATA or ~/.cache/dape_jax.
    length: tokens per training window.
    packing: "segments" (documents packed with segment ids, positions restart
      and no loss across borders) or "plain" (windows cut through the stream,
      the papers' way).
  """

  source: str = "code"
  tokenizer: str = "bytes"
  dir: str = ""
  length: int = 512
  packing: str = "segments"

  def __post_init__(self):
    _require_positive("data", self, "length")
    _require_choice("data.source", self.source, ("code", "stdlib"))
    _require_choice("data.tokenizer", self.tokenizer, ("bytes",))
    _require_choice("data.packing", self.packing, ("segments", "plain"))


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """AdamW with linear warm-up, cosine decay and gradient clipping.

  Attributes:
    learning_rate: peak, reached after warmup_steps.
    final_learning_rate: reached at the last step.
    warmup_steps: linear from 0.
    beta1, beta2, eps: Adam's.
    weight_decay: decoupled.
    decay: what is decayed: "all" (the DAPE recipe, biases and encoding
      parameters too) or "matrices" (parameters of the network with two or more
      axes per layer; never biases, norms or the position encoding's).
    clip_norm: global gradient norm; 0 turns clipping off.
  """

  learning_rate: float = 6e-4
  final_learning_rate: float = 6e-5
  warmup_steps: int = 500
  beta1: float = 0.9
  beta2: float = 0.95
  eps: float = 1e-8
  weight_decay: float = 0.1
  decay: str = "matrices"
  clip_norm: float = 1.0

  def __post_init__(self):
    numbers = (f.name for f in dataclasses.fields(self) if f.type is float)
    _require_finite("optimizer", self, *numbers)
    _require_positive("optimizer", self, "learning_rate", "eps")
    _require_not_negative(
        "optimizer",
        self,
        "final_learning_rate",
        "warmup_steps",
        "weight_decay",
        "clip_norm",
    )
    for name in ("beta1", "beta2"):
      value = getattr(self, name)
      _require(0 <= value < 1, f"optimizer.{name}", value, "must be in [0, 1).")
    _require_choice("optimizer.decay", self.decay, ("all", "matrices"))


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """Length and rhythm of a run.

  Attributes:
    steps: optimizer steps.
    batch_size: windows per optimizer step, over all devices and hosts.
    accumulation: microbatches that one step's batch is split into.
    log_every: in steps.
    eval_every, checkpoint_every: in steps; 0 turns it off (a checkpoint is
      always written at the end).
    eval_batches: validation batches of batch_size windows per evaluation, or as
      many as the split has.
    keep_checkpoints: how many of the latest stay on disk.
    max_position: train on randomized positions (arXiv 2305.16843), a sorted
      sample of 0..max_position - 1 for each window; 0 takes them as they are.
      Validation and evaluation always do.
  """

  steps: int = 50_000
  batch_size: int = 32
  accumulation: int = 1
  log_every: int = 10
  eval_every: int = 1000
  eval_batches: int = 16
  checkpoint_every: int = 1000
  keep_checkpoints: int = 2
  max_position: int = 0

  def __post_init__(self):
    _require_positive(
        "train",
        self,
        "steps",
        "batch_size",
        "accumulation",
        "log_every",
        "eval_batches",
        "keep_checkpoints",
    )
    _require_not_negative(
        "train", self, "eval_every", "checkpoint_every", "max_position"
    )
    _require(
        self.batch_size % self.accumulation == 0,
        "train.accumulation",
        self.accumulation,
        f"does not divide config.train.batch_size={self.batch_size}.",
    )


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
  """Everything that determines a training run, except the machine."""

  model: ModelConfig
  data: DataConfig
  optimizer: OptimizerConfig
  train: TrainConfig
  seed: int = 0

  def __post_init__(self):
    _require(
        type(self.seed) is int and 0 <= self.seed < 2**32,
        "seed",
        self.seed,
        "must be an int from 0 to 2**32 - 1.",
    )
    max_position = self.train.max_position
    _require(
        max_position == 0 or max_position >= self.data.length,
        "train.max_position",
        max_position,
        f"must be at least config.data.length={self.data.length}, or 0.",
    )
    _require(
        not (max_position and any(self.model.windows)),
        "train.max_position",
        max_position,
        f"config.model.windows={self.model.windows} count by position, and would"
        " hold fewer tokens than they say; turn one off.",
    )
