"""Blocks that more than one model is built from: dropout, feed-forward, norms, residuals.

Nothing here knows a vocabulary, a batch or a model family. Shapes: B sentences, T positions, D d_model.

Feed-forward: Vaswani et al. 2017, section 3.3; with gates: Shazeer 2020. GELU: Hendrycks and Gimpel 2016.
SELU: Klambauer et al. 2017. Pre-norm: Xiong et al. 2020. RMS norm: Zhang and Sennrich 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class NormOrder(Enum):
    """Where a sublayer normalises: its input (pre) or the sum with its residual (post)."""

    pre = "pre"
    post = "post"


class Norm(Enum):
    """What a norm divides by: the standard deviation around the mean, or the root of the mean square."""

    layer_norm = "layer_norm"
    rms_norm = "rms_norm"


class Activation(Enum):
    """Non-linearity of the feed-forward block; those that end in glu multiply it with a second linear map."""

    relu = "relu"
    gelu = "gelu"
    selu = "selu"
    silu = "silu"
    glu = "glu"
    reglu = "reglu"
    geglu = "geglu"
    seglu = "seglu"
    swiglu = "swiglu"


class Dropout(nn.Module):
    """Zero elements with probability `rate` in training and scale the others to keep the mean.

    On CPU the mask comes from one random byte per element, several times faster than `F.dropout`. The rate is
    then rounded to a multiple of 1/256, never to 0 or 1, and the scale is that of the rounded rate. Compiled
    code draws its own numbers, fused with what surrounds them.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        if not self.training or not self.rate:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.rate)
        threshold = min(max(round(self.rate * 256), 1), 255)
        num_words = (x.numel() + 7) // 8
        random_bytes = torch.empty(num_words, dtype=torch.int64).random_(-(2**63), None).view(torch.uint8)
        kept = (random_bytes[: x.numel()] >= threshold).view(x.shape)
        return x * (kept * x.new_tensor(256 / (256 - threshold)))

    def extra_repr(self) -> str:
        """Shown by `print(model)`."""
        return f"rate={self.rate}"


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.relu: F.relu,
    Activation.gelu: F.gelu,
    Activation.selu: F.selu,
    Activation.silu: F.silu,
}
GATES: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.glu: torch.sigmoid,
    Activation.reglu: F.relu,
    Activation.geglu: F.gelu,
    Activation.seglu: F.selu,
    Activation.swiglu: F.silu,
}


def zero_bias(layer: nn.Linear) -> None:
    """Start without a bias, where there is one."""
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class FeedForward(nn.Module):
    """Two linear maps with a non-linearity between them, applied to every position alone.

    A gated block has a third one, from D to d_ff, that the non-linearity is multiplied with.
    """

    def __init__(self, d_model: int, d_ff: int, activation: Activation, *, dropout: float, bias: bool = True):
        super().__init__()
        self.gated = activation in GATES
        self.activation = (GATES if self.gated else ACTIVATIONS)[activation]
        self.inner = nn.Linear(d_model, 2 * d_ff if self.gated else d_ff, bias=bias)
        self.outer = nn.Linear(d_ff, d_model, bias=bias)
        self.dropout = Dropout(dropout)
        for weight in (*torch.split(self.inner.weight, d_ff), self.outer.weight):
            nn.init.xavier_uniform_(weight)
        for layer in (self.inner, self.outer):
            zero_bias(layer)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., D)."""
        hidden = self.inner(x)
        if self.gated:
            gate, hidden = hidden.chunk(2, dim=-1)
            hidden = self.activation(gate) * hidden
        else:
            hidden = self.activation(hidden)
        output: Tensor = self.outer(self.dropout(hidden))
        return output


NORMS: dict[Norm, Callable[[int, float], nn.Module]] = {
    Norm.layer_norm: nn.LayerNorm,
    Norm.rms_norm: nn.RMSNorm,
}


class Residual(nn.Module):
    """A sublayer with its norm (a layer norm unless given), dropout and residual connection."""

    def __init__(self, d_model: int, norm_order: NormOrder, *, dropout: float, norm: nn.Module | None = None):
        super().__init__()
        self.pre = norm_order is NormOrder.pre
        self.norm = nn.LayerNorm(d_model) if norm is None else norm
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """pre: x + dropout(sublayer(norm(x))); post: norm(x + dropout(sublayer(x)))."""
        y: Tensor = x + self.dropout(sublayer(self.norm(x) if self.pre else x))
        return y if self.pre else self.norm(y)
