"""Blocks that more than one model is built from: dropout, feed-forward, residuals.

Nothing here knows a vocabulary, a batch or a model family. Shapes: B sentences, T positions, D d_model.

Feed-forward: Vaswani et al. 2017, section 3.3. Pre-norm: Xiong et al. 2020. SwiGLU: Shazeer 2020.
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


class Activation(Enum):
    """Non-linearity of the feed-forward block."""

    relu = "relu"
    gelu = "gelu"
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
    Activation.swiglu: F.silu,
}


class FeedForward(nn.Module):
    """Two linear maps with a non-linearity between them, applied to every position alone."""

    def __init__(self, d_model: int, d_ff: int, activation: Activation, *, dropout: float):
        super().__init__()
        self.gated = activation is Activation.swiglu
        self.activation = ACTIVATIONS[activation]
        self.inner = nn.Linear(d_model, 2 * d_ff if self.gated else d_ff)
        self.outer = nn.Linear(d_ff, d_model)
        self.dropout = Dropout(dropout)
        for weight in (*torch.split(self.inner.weight, d_ff), self.outer.weight):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.inner.bias)
        nn.init.zeros_(self.outer.bias)

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


class Residual(nn.Module):
    """A sublayer with its norm, dropout and residual connection."""

    def __init__(self, d_model: int, norm_order: NormOrder, *, dropout: float):
        super().__init__()
        self.pre = norm_order is NormOrder.pre
        self.norm = nn.LayerNorm(d_model)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """pre: x + dropout(sublayer(norm(x))); post: norm(x + dropout(sublayer(x)))."""
        y: Tensor = x + self.dropout(sublayer(self.norm(x) if self.pre else x))
        return y if self.pre else self.norm(y)
