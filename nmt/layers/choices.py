"""The choices that layers offer, by name: norms, activations, positions and substitutes of self-attention.

The code of each is in `nmt.layers.blocks`, `nmt.layers.positions`, `nmt.layers.relative_positions` or
`nmt.layers.summaries`. Imports no torch: a config is checked without it.
"""

from __future__ import annotations

from enum import Enum


class NormOrder(Enum):
    """The place of a sublayer's norm: on its input (pre), or on the sum with its residual (post)."""

    pre = "pre"
    post = "post"


class Norm(Enum):
    """Kind of norm: division by the standard deviation around the mean, or by the root of the mean square."""

    layer_norm = "layer_norm"
    rms_norm = "rms_norm"


class Activation(Enum):
    """Non-linearity of the feed-forward block; names that end in glu multiply it with a second linear map."""

    relu = "relu"
    gelu = "gelu"
    selu = "selu"
    silu = "silu"
    glu = "glu"
    reglu = "reglu"
    geglu = "geglu"
    seglu = "seglu"
    swiglu = "swiglu"


class Positions(Enum):
    """Kind of positions: sinusoidal and learned are added to embeddings, others act in self-attention."""

    sinusoidal = "sinusoidal"
    learned = "learned"
    rotary = "rotary"
    alibi = "alibi"
    relative = "relative"
    t5 = "t5"
    none = "none"


class SelfAttention(Enum):
    """The way in which a target position of a decoder learns of those before it."""

    attention = "attention"
    average = "average"
    ssru = "ssru"
