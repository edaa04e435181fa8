"""Blocks that more than one model is built from: dropout, feed-forward, norms, residuals.

Nothing here knows a vocabulary, a batch or a model family. Shapes: B sentences, T positions, D d_model.

Feed-forward: Vaswani et al. 2017, section 3.3; with gates: Shazeer 2020. GELU: Hendrycks and Gimpel 2016.
SELU: Klambauer et al. 2017. Pre-norm: Xiong et al. 2020. RMS norm: Zhang and Sennrich 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.kernels import fused
from nmt.kernels.fused import LayerNorm, Linear, RmsNorm
from nmt.layers.choices import Activation, Norm, NormOrder

AnyModule = TypeVar("AnyModule", bound=nn.Module)


class Dropout(nn.Module):
    """Dropout: in training, elements become 0 with probability `rate`, others are scaled to keep the mean."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    @property
    def current_rate(self) -> float:
        """The rate in training, 0 in evaluation."""
        return self.rate if self.training else 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Return `x`, of any shape, after dropout."""
        return fused.dropout(x, self.current_rate)

    def extra_repr(self) -> str:
        """Return what `print(model)` shows of this module."""
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


def _gated(activation: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return activation(gate) * value: (..., d_ff) of x (..., 2 d_ff), gate and value side by side."""
    gate, value = x.chunk(2, dim=-1)
    return activation(gate) * value


def initialise(*layers: Linear) -> None:
    """Initialise matrices, packed ones separately, from Xavier's uniform distribution, and biases with 0."""
    for layer in layers:
        for weight in torch.split(layer.weight, layer.sizes):
            nn.init.xavier_uniform_(weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def module_list(modules: Iterable[AnyModule]) -> Sequence[AnyModule]:
    """Return an `nn.ModuleList` whose modules keep their type."""
    return cast("Sequence[AnyModule]", nn.ModuleList(modules))


class FeedForward(nn.Module):
    """Two linear maps with a non-linearity between them, applied to every position alone.

    In a gated block the output of the non-linearity is multiplied with a third map, from D to d_ff.
    """

    def __init__(self, d_model: int, d_ff: int, activation: Activation, *, dropout: float, bias: bool = True):
        super().__init__()
        self.kind, self.d_ff = activation, d_ff
        if activation in GATES:
            self.activation: Callable[[Tensor], Tensor] = partial(_gated, GATES[activation])
            self.inner = Linear(d_model, d_ff, d_ff, bias=bias)
        else:
            self.activation = ACTIVATIONS[activation]
            self.inner = Linear(d_model, d_ff, bias=bias)
        self.outer = Linear(d_ff, d_model, bias=bias)
        self.dropout = Dropout(dropout)
        initialise(self.inner, self.outer)

    def forward(self, x: Tensor) -> Tensor:
        """Return outer(dropout(activation(inner(x)))) of x (..., D)."""
        return fused.feed_forward(x, self.inner, self.activation, self.outer, self.dropout.current_rate)


NORMS: dict[Norm, Callable[[int, float], nn.Module]] = {
    Norm.layer_norm: LayerNorm,
    Norm.rms_norm: RmsNorm,
}


class Residual(nn.Module):
    """A sublayer with its norm, dropout and residual connection."""

    def __init__(self, norm: nn.Module, norm_order: NormOrder, *, dropout: float):
        super().__init__()
        self.pre = norm_order is NormOrder.pre
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Return x + dropout(sublayer(norm(x))) (pre), or norm(x + dropout(sublayer(x))) (post)."""
        rate = self.dropout.current_rate
        if self.pre:
            return fused.add_dropout(x, sublayer(fused.normed_operand(self.norm, x)), rate)
        return self.norm(fused.add_dropout(x, sublayer(x), rate))
