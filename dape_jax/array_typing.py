"""Axis letters and array aliases used in signatures.

B batch, T query length, S key length, D model width, N query heads, K
key/value heads, H head dim, F feed-forward, V vocabulary, M score-network
width. Tensors in models and reference code carry them as suffixes, as in
`scores_BxNxTxS`; a tile (one batch element, some queries, some keys) uses the
lower-case t and s.
"""

from jaxtyping import Array, Bool, Float, Int

Query = Float[Array, "B T N H"]
Key = Float[Array, "B S K H"]
Value = Float[Array, "B S K Hv"]
Positions = Int[Array, "T"] | Int[Array, "B T"]
SegmentIds = Int[Array, "B T"]
Tokens = Int[Array, "B T"]
Logits = Float[Array, "B T V"]
TilePositions = Int[Array, "t"]
QueryPositions = Int[Array, "t 1"]
KeyPositions = Int[Array, "1 s"]
TileMask = Bool[Array, "t s"]
TileScores = Float[Array, "N t s"]
TileDistances = Int[Array, "t s"]
PerHead = Float[Array, "N"]

__all__ = [
    "Key",
    "KeyPositions",
    "Logits",
    "PerHead",
    "Positions",
    "Query",
    "QueryPositions",
    "SegmentIds",
    "TileDistances",
    "TileMask",
    "TilePositions",
    "TileScores",
    "Tokens",
    "Value",
]
