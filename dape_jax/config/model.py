"""Model settings."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from dape_jax.config.checks import (
    check_fields,
    fraction,
    not_negative,
    one_of,
    positive,
    require,
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
    encoding: registry name of the position encoding, or a comma-separated list
      that layers cycle through ("rope,rope,rope,nope").
    encoding_options: options of the encoding (see `encodings.options`); with a
      list, each encoding takes the options it has.
    share_encoding: share the encoding's parameters between all layers. Absolute
      encodings and their modifiers are always shared.
    windows: attention windows in tokens that layers cycle through; 0 means
      none.
    causal: True for a decoder (each token attends to earlier ones), False for
      an encoder (each attends to all).
    norm: "pre" (LayerNorm before each sublayer and after the last) or "post"
      (after each residual sum).
    activation: "gelu" (tanh form) or "relu".
    dropout: rate on sublayer outputs in training.
    num_outputs: rows of the output head; 0 means vocab_size.
    init: "dape" (small init, as in the code of arXiv 2405.14722), "kerple" (as
      in GPT-2) or "ruoss" (Haiku's default, as in arXiv 2305.16843).
    dtype: compute dtype of activations; parameters are always float32.
    remat: rematerialization in the backward pass: "none", "dots" (keep matrix
      products without a batch dimension) or "full" (keep only block inputs).
  """

  vocab_size: int = positive(384)
  num_layers: int = positive(12)
  width: int = positive(768)
  num_heads: int = positive(12)
  num_kv_heads: int = not_negative(0)
  mlp_width: int = not_negative(0)
  encoding: str = "dape_kerple_log"
  encoding_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  share_encoding: bool = False
  windows: tuple[int, ...] = (0,)
  causal: bool = True
  norm: str = one_of("pre", "post")
  activation: str = one_of("gelu", "relu")
  dropout: float = fraction(0.0)
  num_outputs: int = not_negative(0)
  init: str = one_of("dape", "kerple", "ruoss")
  dtype: str = one_of("bfloat16", "float32")
  remat: str = one_of("none", "dots", "full")

  def __post_init__(self):
    check_fields("model", self)
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
        "must be a tuple of token counts, 0 for none.",
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
        "needs a single encoding, whose parameters all layers share.",
    )
    require(
        self.num_heads % kv_heads == 0,
        "model.num_kv_heads",
        self.num_kv_heads,
        f"does not divide config.model.num_heads={self.num_heads}; choose a"
        " divisor (0 means one key/value head per query head).",
    )

  @property
  def encodings(self) -> tuple[str, ...]:
    """Returns the encoding names that layers cycle through."""
    return tuple(name.strip() for name in self.encoding.split(","))

  @property
  def layer_kinds(self) -> tuple[tuple[str, int], ...]:
    """Returns one period of the layers' (encoding, window) pairs."""
    period = math.lcm(len(self.encodings), len(self.windows))
    return tuple(
        (
            self.encodings[i % len(self.encodings)],
            self.windows[i % len(self.windows)],
        )
        for i in range(period)
    )

  def __hash__(self):
    # jit hashes modules, and thus their config, as static arguments.
    values = (getattr(self, f.name) for f in dataclasses.fields(self))
    return hash(
        tuple(
            tuple(sorted(v.items())) if isinstance(v, Mapping) else v
            for v in values
        )
    )
