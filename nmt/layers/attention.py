"""Multi-head attention, and how to see its weights.

Nothing here knows a vocabulary, a batch or a model family. Shapes: B sentences, T positions of the queries,
S positions of the keys, D d_model, H heads, C channels of a head. Masks are boolean and True means "may be
attended"; every query must have something to attend to.

Attention: Vaswani et al. 2017, section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.kernels import fused
from nmt.layers.blocks import Dropout, Linear, zero_bias
from nmt.layers.relative_positions import RelativePositions


class AttentionRole(Enum):
    """Which part of a model attends to which."""

    encoder = "encoder"
    """The source to itself."""
    decoder = "decoder"
    """The target to itself."""
    cross = "cross"
    """The target to the source."""


class Recorder(nn.Module):
    """What computes attention weights, and hands them out on request: the base of every kind of attention."""

    def __init__(self, role: AttentionRole):
        super().__init__()
        self.role = role
        self.recorded: list[Tensor] | None = None

    def record(self, weights: Tensor) -> None:
        """Keep `weights` (B, H, T, S), or (B, T, S) of a single head, when somebody asked for them."""
        if self.recorded is not None:
            weights = weights if weights.dim() == 4 else weights[:, None]
            self.recorded.append(weights.detach().float())


class MultiHeadAttention(Recorder):
    """Multi-head scaled dot-product attention over keys and values that the caller computes and may keep.

    `keys_values` projects and splits what is attended to; `forward` asks with one query per row of x. In
    search, the K hypotheses of a sentence ask as K queries over the one stored copy of its source.

    A head has `d_k` channels for queries and keys and `d_v` for values, D / H each unless given; `bias` is
    that of their projections. `positions` tell how far a key is from a query, for self-attention.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        dropout: float,
        role: AttentionRole,
        d_k: int | None = None,
        d_v: int | None = None,
        bias: bool = True,
        output_bias: bool = True,
        positions: RelativePositions | None = None,
    ):
        super().__init__(role)
        self.num_heads = num_heads
        self.widths = [num_heads * (size or d_model // num_heads) for size in (d_k, d_v)]
        self.query = Linear(d_model, self.widths[0], bias=bias)
        self.key_value = Linear(d_model, sum(self.widths), bias=bias)
        self.output = Linear(self.widths[1], d_model, bias=output_bias)
        self.dropout = Dropout(dropout)
        self.positions = positions
        for weight in (
            self.query.weight,
            *torch.split(self.key_value.weight, self.widths),
            self.output.weight,
        ):
            nn.init.xavier_uniform_(weight)
        for layer in (self.query, self.key_value, self.output):
            zero_bias(layer)

    def keys_values(self, x: Tensor, start: int | Tensor = 0) -> tuple[Tensor, Tensor]:
        """Keys, turned to their columns from `start` on, and values (B, H, S, C) of x (B, S, D)."""
        keys, values = map(self._split, torch.split(self.key_value(x), self.widths, dim=-1))
        if self.positions is not None:
            keys = self.positions.rotate(keys, start)
        return keys, values

    def forward(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        start: int | Tensor | None = None,
        *,
        is_causal: bool = False,
    ) -> Tensor:
        """(B, T, D) of x (B, T, D), keys and values (B, H, S, C); the mask expands to (B, H, T, S).

        With `positions`, x is the last T of the S columns. `start` is what `keys_values` counted them from,
        if that is not the S - T columns before. `is_causal` says that the mask hides just what comes later,
        for which GPUs have a faster kernel (FlashAttention, Dao et al. 2022).
        """
        queries = self._split(self.query(x))
        rate, needs_weights = self.dropout.current_rate, self.recorded is not None
        if self.positions is not None:
            num_keys = keys.shape[2]
            queries = self.positions.rotate(queries, num_keys - x.shape[1] if start is None else start)
            biased = self.positions.masked_bias(queries, num_keys, mask)
            mask, is_causal = biased, is_causal and biased is mask
            needs_weights = needs_weights or self.positions.needs_weights
        if not needs_weights and fused.can_attend(queries, keys, values, mask):
            context = fused.attention(queries, keys, values, mask, rate)
        elif needs_weights or (x.device.type == "cpu" and self.training):
            context = self._attend_explicitly(queries, keys, values, mask)
        else:
            mask = None if is_causal else mask
            context = F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, dropout_p=rate, is_causal=is_causal
            )
        return self.output(context.transpose(1, 2).flatten(2))

    @property
    def can_attend_cached(self) -> bool:
        """Whether `attend_cached` computes what `forward` does."""
        needs_weights = self.positions is not None and self.positions.needs_weights
        return not (self.training or needs_weights or self.recorded is not None)

    def attend_cached(
        self, x: Tensor, keys: list[Tensor], values: list[Tensor], rows: Tensor, mask: Tensor | None
    ) -> Tensor:
        """(N, 1, D) of x (N, 1, D), the last column of those in some chunks of keys and values (R, H, L, C).

        Query n attends to row rows[n, i] of each chunk i: `rows` (N, chunks) int32. Of the first chunk,
        `mask` (R, L) allows some columns. A kernel, for where `kernels.usable`; its definition is `forward`
        over the gathered rows.
        """
        queries, bias = self._split(self.query(x)), None
        if self.positions is not None:
            num_keys = sum(chunk.shape[2] for chunk in keys)
            queries = self.positions.rotate(queries, num_keys - 1)
            bias = self.positions.bias(queries, num_keys)
            bias = None if bias is None else bias.contiguous()
        context = torch.ops.nmt.attend(queries, keys, values, rows, mask, bias)
        return self.output(context)

    def _attend_explicitly(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """The definition: shows its weights, and on CPU it trains faster than the fused function.

        As in the fused function, the mask is boolean or a bias on the scores.
        """
        scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-2, -1)  # scaled first: fp16 has room
        if mask is not None:
            is_bias = mask.is_floating_point()
            scores = scores + mask if is_bias else scores.masked_fill(~mask, -torch.inf)
        weights = scores.softmax(dim=-1)
        self.record(weights)
        weights = self.dropout(weights).to(values.dtype)
        return weights @ values if self.positions is None else self.positions.weighted_sum(weights, values)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


@contextmanager
def recorded_attention(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Collect attention weights while the block runs: by module name, (B, H, T, S) float32 for each call."""
    recorders = {name: module for name, module in model.named_modules() if isinstance(module, Recorder)}
    weights: dict[str, list[Tensor]] = {name: [] for name in recorders}
    for name, recorder in recorders.items():
        recorder.recorded = weights[name]
    try:
        yield weights
    finally:
        for recorder in recorders.values():
            recorder.recorded = None
