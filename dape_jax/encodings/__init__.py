"""Position encodings as pure functions of one tile of scores."""

from dape_jax.encodings.absolute import Learned, Sinusoidal
from dape_jax.encodings.alibi import Alibi, alibi_slopes
from dape_jax.encodings.base import PositionalEncoding
from dape_jax.encodings.cable import Cable
from dape_jax.encodings.cope import Cope
from dape_jax.encodings.dape import Dape
from dape_jax.encodings.dape_v2 import DapeV2
from dape_jax.encodings.effective_length import effective_lengths
from dape_jax.encodings.fire import Fire, fire_bias
from dape_jax.encodings.fox import Fox
from dape_jax.encodings.kerple import (
    Kerple3ParaLog,
    KerpleLog,
    kerple_log_bias,
)
from dape_jax.encodings.kerple_power_family import (
    Kerple1ParaWht,
    Kerple2ParaBias,
    Kerple2ParaWht,
    Kerple3ParaBias,
    KerpleBiasWht,
    KerplePower,
)
from dape_jax.encodings.modifiers import LearnedSink, LogN, SoftCap, SSMax
from dape_jax.encodings.nope import Nope
from dape_jax.encodings.randomized import randomized_positions
from dape_jax.encodings.registry import make, names, options
from dape_jax.encodings.rope import Rope, rope_frequencies
from dape_jax.encodings.rope_scaling import (
    RopeDynamicNtk,
    RopeNtk,
    RopePi,
    RopeYarn,
)
from dape_jax.encodings.sandwich import Sandwich
from dape_jax.encodings.sum import Sum
from dape_jax.encodings.t5 import T5
from dape_jax.encodings.tile import (
    AdditiveBias,
    ScoreMod,
    Tile,
    TileFunction,
)
from dape_jax.encodings.transformer_xl import TransformerXL
from dape_jax.encodings.xpos import XPos

__all__ = [
    "T5",
    "AdditiveBias",
    "Alibi",
    "Cable",
    "Cope",
    "Dape",
    "DapeV2",
    "Fire",
    "Fox",
    "Kerple1ParaWht",
    "Kerple2ParaBias",
    "Kerple2ParaWht",
    "Kerple3ParaBias",
    "Kerple3ParaLog",
    "KerpleBiasWht",
    "KerpleLog",
    "KerplePower",
    "Learned",
    "LearnedSink",
    "LogN",
    "Nope",
    "PositionalEncoding",
    "Rope",
    "RopeDynamicNtk",
    "RopeNtk",
    "RopePi",
    "RopeYarn",
    "SSMax",
    "Sandwich",
    "ScoreMod",
    "Sinusoidal",
    "SoftCap",
    "Sum",
    "Tile",
    "TileFunction",
    "TransformerXL",
    "XPos",
    "alibi_slopes",
    "effective_lengths",
    "fire_bias",
    "kerple_log_bias",
    "make",
    "names",
    "options",
    "randomized_positions",
    "rope_frequencies",
]
