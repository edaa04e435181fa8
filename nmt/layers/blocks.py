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

from nmt.kernels import fused


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
    """Zero elements with probability `rate` in training and scale the others to keep the mean."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    @property
    def current_rate(self) -> float:
        """The rate in training, 0 in evaluation."""
        return self.rate if self.training else 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return fused.dropout(x, self.current_rate)

    def extra_repr(self) -> str:
        """Shown by `print(model)`."""
        return f"rate={self.rate}"


class Linear(nn.Linear):
    """`nn.Linear`, trained by kernels where there are some."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., N) of x (..., K)."""
        return fused.linear(x, self.weight, self.bias)


def is_plain(layer: nn.Module) -> bool:
    """Whether `layer` is a `Linear` that nobody has wrapped or hooked: its weights are all there is to it."""
    return type(layer) is Linear and not layer._forward_hooks and not layer._forward_pre_hooks


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` over the last axis, trained by kernels where there are some."""

    feeds_product = False
    """Whether only matrix products read the result, which then need not be more precise than they are."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape (..., D)."""
        return fused.layer_norm(x, self.weight, self.bias, self.eps, feeds_product=self.feeds_product)


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
        self.inner = Linear(d_model, 2 * d_ff if self.gated else d_ff, bias=bias)
        self.outer = Linear(d_ff, d_model, bias=bias)
        self.dropout = Dropout(dropout)
        for weight in (*torch.split(self.inner.weight, d_ff), self.outer.weight):
            nn.init.xavier_uniform_(weight)
        for layer in (self.inner, self.outer):
            zero_bias(layer)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., D)."""
        relu = self.activation is F.relu and not self.gated
        plain = all(is_plain(layer) for layer in (self.inner, self.outer))
        if relu and plain and fused.can_feed_forward(x, self.inner, self.outer):
            return fused.feed_forward(x, self.inner, self.outer, self.dropout.current_rate)
        hidden = self.inner(x)
        if self.gated:
            gate, hidden = hidden.chunk(2, dim=-1)
            hidden = self.dropout(self.activation(gate) * hidden)
        elif relu:
            hidden = fused.relu_dropout(hidden, self.dropout.current_rate)
        else:
            hidden = self.dropout(self.activation(hidden))
        return self.outer(hidden)


NORMS: dict[Norm, Callable[[int, float], nn.Module]] = {
    Norm.layer_norm: LayerNorm,
    Norm.rms_norm: nn.RMSNorm,
}


class Residual(nn.Module):
    """A sublayer with its norm (a layer norm unless given), dropout and residual connection."""

    def __init__(self, d_model: int, norm_order: NormOrder, *, dropout: float, norm: nn.Module | None = None):
        super().__init__()
        self.pre = norm_order is NormOrder.pre
        self.norm = LayerNorm(d_model) if norm is None else norm
        if isinstance(self.norm, LayerNorm):
            self.norm.feeds_product = self.pre  # after a post-norm comes the next residual
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """pre: x + dropout(sublayer(norm(x))); post: norm(x + dropout(sublayer(x)))."""
        out = sublayer(self.norm(x) if self.pre else x)
        y: Tensor = fused.add_dropout(x, out, self.dropout.current_rate)
        return y if self.pre else self.norm(y)
