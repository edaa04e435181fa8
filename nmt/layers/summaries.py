"""Blocks that take the place of a decoder's self-attention, and remember the past in one vector.

A step of search takes as long and as much memory at the end of a sentence as at its beginning. Both blocks
are causal: padding at the end of a target changes nothing before it. What they remember is float32 whatever
the type of the rest: a gate near 1, or the sum of many positions, would lose too much in 16 bits.

Shapes: B sentences, N hypotheses, T positions, D d_model.

Average attention: Zhang, Xiong and Su 2018. SSRU, the simpler simple recurrent unit: Kim et al. 2019, section
3.2; it is the SRU of Lei et al. 2018 without its second gate, and with ReLU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.kernels.fused import Linear
from nmt.layers.blocks import FeedForward, initialise


class Summary(nn.Module, ABC):
    """A map of each position and a summary of those before it."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return (B, T, D) of all positions x (B, T, D)."""

    @abstractmethod
    def step(self, x: Tensor, past: Tensor | None, position: int | Tensor) -> tuple[Tensor, Tensor]:
        """Return what `forward` does for x (N, 1, D), the next position, and what to remember (N, D).

        `past` is what was remembered before; None at the first position. `position` counts from 0.
        """


class Ssru(Summary):
    """The simpler simple recurrent unit: relu(c_t), c_t = f_t c_(t-1) + (1 - f_t) W x_t.

    The forget gate is f_t = sigmoid(W_f x_t + b_f).
    """

    def __init__(self, d_model: int):
        super().__init__()
        self.maps = Linear(d_model, d_model, d_model, bias=False)
        """W_f and W, one above the other."""
        self.gate_bias = nn.Parameter(torch.zeros(d_model))
        initialise(self.maps)

    @property
    def value_weight(self) -> Tensor:
        """The matrix W (D, D)."""
        return self.maps.weight.chunk(2)[1]

    @property
    def bias(self) -> Tensor:
        """What is added to both products (2 D,): b_f, and nothing to W x_t."""
        return F.pad(self.gate_bias, (0, len(self.gate_bias)))

    def forward(self, x: Tensor) -> Tensor:
        product = self.maps(x)
        return F.relu(recurrence(*self._gate_and_value(product))).to(product.dtype)

    def step(self, x: Tensor, past: Tensor | None, position: int | Tensor) -> tuple[Tensor, Tensor]:
        product = self.maps(x[:, 0])
        gate, value = self._gate_and_value(product)
        cell = torch.lerp(value, torch.zeros_like(value) if past is None else past, gate)
        return F.relu(cell).to(product.dtype)[:, None], cell

    def _gate_and_value(self, product: Tensor) -> tuple[Tensor, Tensor]:
        """Return f and W x (..., D) in float32 of the product of both matrices (..., 2 D)."""
        gate, value = product.float().chunk(2, dim=-1)
        return torch.sigmoid(gate + self.gate_bias.float()), value


def recurrence(gate: Tensor, value: Tensor) -> Tensor:
    """Return c (B, T, D), c_t = gate_t c_(t-1) + (1 - gate_t) value_t from c = 0 on; gates are in [0, 1].

    One operation for each position, forward and backward: autograd would take several, and more memory.
    Products of many gates, which a scan in parallel would need, may underflow; here there are none. It is an
    operator of torch, in which `torch.compile` does not look: it would compile the loop for every length.
    """
    cells: Tensor = torch.ops.nmt_layers.recurrence(gate, value)
    return cells


def _recur(gate: Tensor, value: Tensor) -> Tensor:
    cells = torch.empty_like(gate)
    cell = torch.zeros_like(gate[:, 0])
    for t in range(gate.shape[1]):
        cell = torch.lerp(value[:, t], cell, gate[:, t], out=cells[:, t])
    return cells


def _recur_back(grad: Tensor, gate: Tensor, value: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
    grad = grad.clone()  # of c_t, to which the gradient through c_(t+1) is added
    for t in range(grad.shape[1] - 2, -1, -1):
        grad[:, t].addcmul_(gate[:, t + 1], grad[:, t + 1])
    before = F.pad(cells[:, :-1], (0, 0, 1, 0))
    return grad * (before - value), torch.addcmul(grad, grad, gate, value=-1)


_LIBRARY = torch.library.Library("nmt_layers", "DEF")
_LIBRARY.define("recurrence(Tensor gate, Tensor value) -> Tensor")
_LIBRARY.define("recurrence_back(Tensor grad, Tensor gate, Tensor value, Tensor cells) -> (Tensor, Tensor)")
for _name, _code, _like in (
    ("recurrence", _recur, lambda gate, value: torch.empty_like(gate)),
    ("recurrence_back", _recur_back, lambda grad, *others: (torch.empty_like(grad), torch.empty_like(grad))),
):
    _LIBRARY.impl(_name, _code, "CompositeExplicitAutograd")
    torch.library.register_fake(f"nmt_layers::{_name}", _like, lib=_LIBRARY)
torch.library.register_autograd(
    "nmt_layers::recurrence",
    lambda ctx, grad: torch.ops.nmt_layers.recurrence_back(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, output),
    lib=_LIBRARY,
)


class AverageAttention(Summary):
    """Average attention: i_t x_t + f_t g_t, where g_t = FFN((x_1 + ... + x_t) / t).

    The gates are i_t and f_t = sigmoid(W [x_t; g_t] + b). `block` is the feed-forward block; None leaves the
    mean as it is.
    """

    def __init__(self, d_model: int, block: FeedForward | None):
        super().__init__()
        self.block = nn.Identity() if block is None else block
        self.gates = Linear(2 * d_model, d_model, d_model)
        initialise(self.gates)

    def forward(self, x: Tensor) -> Tensor:
        counts = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]  # (T, 1)
        return self._gated(x, x.cumsum(1, dtype=torch.float32) / counts)

    def step(self, x: Tensor, past: Tensor | None, position: int | Tensor) -> tuple[Tensor, Tensor]:
        total = x[:, 0].float() if past is None else past + x[:, 0]
        return self._gated(x, (total / (position + 1))[:, None]), total

    def _gated(self, x: Tensor, mean: Tensor) -> Tensor:
        summary = self.block(mean.to(x.dtype))
        own, past = torch.sigmoid(self.gates(torch.cat([x, summary], dim=-1))).chunk(2, dim=-1)
        return own * x + past * summary
