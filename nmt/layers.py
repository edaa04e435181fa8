"""Blocks that more than one model is built from: dropout, positions, attention, feed-forward, residuals.

Nothing here knows a vocabulary, a batch or a model family. Shapes: B sentences, T positions of the queries,
S positions of the keys, D d_model, H heads, C = D / H channels of a head. Masks are boolean and True means
"may be attended"; every query must have something to attend to.

Attention, feed-forward and sinusoids: Vaswani et al. 2017, section 3. Pre-norm: Xiong et al. 2020.
SwiGLU: Shazeer 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.errors import UserError


class NormOrder(Enum):
    """Where a sublayer normalises: its input (pre) or the sum with its residual (post)."""

    pre = "pre"
    post = "post"


class Positions(Enum):
    """How a model tells positions apart."""

    sinusoidal = "sinusoidal"
    learned = "learned"


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


def sinusoids(length: int, d_model: int, *, device: torch.device | None = None) -> Tensor:
    """(length, D): sines in even and cosines in odd channels, wavelengths from 2 pi to 10000 * 2 pi.

    The angles are float64: in float32 they lose three digits by position 1000.
    """
    position = torch.arange(length, device=device, dtype=torch.float64)[:, None]
    channel = torch.arange(0, d_model, 2, device=device, dtype=torch.float64)
    angle = position * torch.exp(channel * (-math.log(10000.0) / d_model))
    table = torch.empty(length, d_model, device=device)
    table[:, 0::2] = torch.sin(angle)
    table[:, 1::2] = torch.cos(angle)[:, : d_model // 2]  # an odd D has one sine more
    return table


class SinusoidalPositions(nn.Module):
    """Fixed positions; the table grows with the longest sequence seen and is not part of a checkpoint."""

    def __init__(self, d_model: int):
        super().__init__()
        self.d_model = d_model
        self.register_buffer("table", sinusoids(512, d_model), persistent=False)
        self.table: Tensor

    def forward(self, start: int, length: int) -> Tensor:
        """(length, D): positions start .. start + length - 1."""
        if start + length > len(self.table):
            with torch.inference_mode(False):  # what search makes, training may use
                self.table = sinusoids(2 * (start + length), self.d_model, device=self.table.device)
        return self.table[start : start + length]


class LearnedPositions(nn.Module):
    """One trained vector per position; sequences may not be longer than `max_length`."""

    def __init__(self, d_model: int, max_length: int):
        super().__init__()
        self.max_length = max_length
        self.table = nn.Embedding(max_length, d_model)
        nn.init.normal_(self.table.weight, std=d_model**-0.5)

    def forward(self, start: int, length: int) -> Tensor:
        """(length, D): positions start .. start + length - 1; raises `UserError` beyond `max_length`."""
        if start + length > self.max_length:
            raise UserError(
                f"a sequence of {start + length} tokens exceeds model.max_positions={self.max_length}; "
                "shorten the text, or train a model with more positions"
            )
        return self.table.weight[start : start + length]


class Attention(nn.Module):
    """Multi-head scaled dot-product attention over keys and values that the caller computes and may keep.

    `attended` projects and splits what is attended to; `forward` asks with one query per row of x. In search,
    the K hypotheses of a sentence ask as K queries over the one stored copy of its source.
    """

    def __init__(self, d_model: int, num_heads: int, *, dropout: float):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(d_model, d_model)
        self.key_value = nn.Linear(d_model, 2 * d_model)
        self.output = nn.Linear(d_model, d_model)
        self.dropout = Dropout(dropout)
        self.recorded: list[Tensor] | None = None
        for weight in (self.query.weight, *self.key_value.weight.chunk(2), self.output.weight):
            nn.init.xavier_uniform_(weight)
        for layer in (self.query, self.key_value, self.output):
            nn.init.zeros_(layer.bias)

    def attended(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, S, C) of x (B, S, D)."""
        keys, values = self.key_value(x).chunk(2, dim=-1)
        return self._split(keys), self._split(values)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """(B, T, D) of x (B, T, D), keys and values (B, H, S, C); the mask expands to (B, H, T, S)."""
        queries = self._split(self.query(x))
        if self.recorded is not None or (x.device.type == "cpu" and self.training):
            context = self._written_out(queries, keys, values, mask)
        else:
            rate = self.dropout.rate if self.training else 0.0
            context = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, dropout_p=rate)
        output: Tensor = self.output(context.transpose(1, 2).flatten(2))
        return output

    def _written_out(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """The definition: shows its weights, and on CPU it trains faster than the fused function."""
        scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-2, -1)  # scaled first: fp16 has room
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        weights = scores.softmax(dim=-1)
        if self.recorded is not None:
            self.recorded.append(weights.detach().float())
        context: Tensor = self.dropout(weights).to(values.dtype) @ values
        return context

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


@contextmanager
def recorded_attention(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Collect attention weights while the block runs: by module name, (B, H, T, S) float32 for each call."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    for layer in layers.values():
        layer.recorded = []
    weights = {name: layer.recorded for name, layer in layers.items() if layer.recorded is not None}
    try:
        yield weights
    finally:
        for layer in layers.values():
            layer.recorded = None


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
