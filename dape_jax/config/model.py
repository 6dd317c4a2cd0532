"""Settings of a model."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from dape_jax.config.checks import (
    require,
    require_choice,
    require_not_negative,
    require_positive,
)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Decoder or encoder (models/transformer.py).

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
    causal: True is a decoder, each token sees those before it; False is an
      encoder, each sees all.
    norm: "pre", LayerNorm before each sublayer and after the last, or "post",
      after each residual sum.
    activation: "gelu" (tanh form) or "relu".
    dropout: rate, of sublayer outputs in training.
    num_outputs: rows of the output head; 0 means vocab_size.
    init: "dape" (small init, arXiv 2405.14722's code), "kerple" (GPT-2's) or
      "ruoss" (Haiku's default, arXiv 2305.16843).
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
  causal: bool = True
  norm: str = "pre"
  activation: str = "gelu"
  dropout: float = 0.0
  num_outputs: int = 0
  init: str = "dape"
  dtype: str = "bfloat16"
  remat: str = "none"

  def __post_init__(self):
    require_positive(
        "model", self, "vocab_size", "num_layers", "width", "num_heads"
    )
    require_not_negative(
        "model", self, "num_kv_heads", "mlp_width", "num_outputs"
    )
    require(
        0 <= self.dropout < 1, "model.dropout", self.dropout, "not in [0, 1)."
    )
    require(
        self.width % self.num_heads == 0,
        "model.num_heads",
        self.num_heads,
        f"does not divide config.model.width={self.width}; choose a divisor.",
    )
    kv_heads = self.num_kv_heads or self.num_heads
    fits = isinstance(self.windows, tuple | list) and all(
        type(window) is int and window >= 0 for window in self.windows
    )
    require(
        fits and len(self.windows) > 0,
        "model.windows",
        self.windows,
        "must be a tuple of numbers of tokens, 0 for none.",
    )
    object.__setattr__(self, "windows", tuple(self.windows))
    require(
        self.num_layers % len(self.layer_kinds) == 0,
        "model.num_layers",
        self.num_layers,
        f"encodings and windows repeat after {len(self.layer_kinds)} layers;"
        " choose a multiple.",
    )
    require(
        not self.share_encoding or len(self.encodings) == 1,
        "model.share_encoding",
        self.share_encoding,
        "needs one encoding, of which all layers share the parameters.",
    )
    require(
        self.num_heads % kv_heads == 0,
        "model.num_kv_heads",
        self.num_kv_heads,
        f"does not divide config.model.num_heads={self.num_heads}; choose a"
        " divisor (0 means one key/value head per query head).",
    )
    require_choice("model.norm", self.norm, ("pre", "post"))
    require_choice("model.activation", self.activation, ("gelu", "relu"))
    require_choice("model.init", self.init, ("dape", "kerple", "ruoss"))
    require_choice("model.dtype", self.dtype, ("bfloat16", "float32"))
    require_choice("model.remat", self.remat, ("none", "dots", "full"))

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
