"""Multi-head attention, and how to see its weights.

Nothing here knows a vocabulary, a batch or a model family. Shapes: B sentences, T positions of the queries,
S positions of the keys, D d_model, H heads, C channels of a head. Masks are boolean and True means "may be
attended", or what `prepared` makes of such a mask; every query must have something to attend to.

Attention: Vaswani et al. 2017, section 3.2. Keys and values of fewer heads: Shazeer 2019 (one), Ainslie et
al. 2023. Normalised queries and keys: Henry et al. 2020, here by root mean squares, before positions rotate.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nmt.kernels import fused
from nmt.kernels.fused import Linear, RmsNorm
from nmt.layers.blocks import Dropout, initialise
from nmt.layers.relative_positions import RelativePositions

QK_EPS = 1e-6
"""Added to the mean square in the norms of queries and keys."""
ROW = 8
"""Rows of an additive mask begin at multiples of so many elements: the kernels of GPUs copy other masks."""


def prepared(mask: Tensor, x: Tensor) -> Tensor:
    """Return a boolean mask (..., S) for the attention of several layers to x, as it is fastest for them.

    A GPU adds a mask to the scores, and would make that of a boolean one anew in every layer, forward and
    backward. On CPU the boolean mask itself is best.
    """
    return mask if mask.device.type == "cpu" else additive(mask, fused.product_dtype(x))


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where the boolean mask (..., S) is True and -inf elsewhere; its rows lie as `ROW` says.

    Something lies between rows for every S, so that compiled code is the same for all.
    """
    columns = mask.shape[-1]
    scores = torch.zeros((*mask.shape[:-1], (columns // ROW + 1) * ROW), dtype=dtype, device=mask.device)
    return scores[..., :columns].masked_fill_(~mask, -torch.inf)


class AttentionRole(Enum):
    """The two sequences that an attention connects."""

    encoder = "encoder"
    """The source to itself."""
    decoder = "decoder"
    """The target to itself."""
    cross = "cross"
    """The target to the source."""


class Factors(NamedTuple):
    """The queries (B, H, T, C) and keys (B, H, S, C), whose products / sqrt(C) are the scores of a head.

    They are rotated where positions rotate; biases of positions are added to the scores afterwards.
    """

    queries: Tensor
    keys: Tensor


class Recorder(nn.Module):
    """The base of every kind of attention: a module whose attention weights can be recorded."""

    def __init__(self, role: AttentionRole):
        super().__init__()
        self.role = role
        self.recorded: list[Tensor] | None = None
        self.factors: list[Factors] | None = None
        self.records_gradients = False
        """Whether gradients flow back from what is recorded."""

    def record(self, weights: Tensor, factors: Factors | None = None) -> None:
        """Keep `weights` (B, H, T, S), or (B, T, S) of a single head, when somebody asked for them.

        `factors` are given by attention whose scores are products of queries and keys, divided by sqrt(C).
        """
        if self.recorded is not None:
            weights = weights if weights.dim() == 4 else weights[:, None]
            self.recorded.append((weights if self.records_gradients else weights.detach()).float())
        if self.factors is not None and factors is not None:
            self.factors.append(Factors(*(factor.detach().float() for factor in factors)))


class MultiHeadAttention(Recorder):
    """Multi-head scaled dot-product attention over keys and values that the caller computes and may cache.

    `keys_values` projects the sequence attended to and splits it into heads; `forward` makes a query of each
    row of x. In search, the K hypotheses of a sentence are K queries over the one stored copy of its source.

    A head has `d_k` channels for queries and keys and `d_v` for values, D / H each unless given; `bias` is
    for the projections to these. `positions`, if given, tell self-attention how far a key is from a query.
    Keys and values may have fewer heads, `num_kv_heads`, of which each is for as many heads of queries. The
    sequence attended to has `d_memory` channels, D unless given.
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
        num_kv_heads: int | None = None,
        qk_norm: bool = False,
        positions: RelativePositions | None = None,
        d_memory: int | None = None,
    ):
        super().__init__(role)
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads or num_heads
        channels = [size or d_model // num_heads for size in (d_k, d_v)]
        self.widths = [num_heads * size for size in channels]
        self.kv_widths = [self.num_kv_heads * size for size in channels]
        self.query = Linear(d_model, self.widths[0], bias=bias)
        self.key_value = Linear(d_memory or d_model, *self.kv_widths, bias=bias)
        self.query_norm, self.key_norm = (RmsNorm(channels[0], QK_EPS) if qk_norm else None for _ in range(2))
        self.output = Linear(self.widths[1], d_model, bias=output_bias)
        self.dropout = Dropout(dropout)
        self.positions = RelativePositions() if positions is None else positions
        initialise(self.query, self.key_value, self.output)

    def keys_values(self, x: Tensor, start: int | Tensor = 0) -> tuple[Tensor, Tensor]:
        """Return keys, rotated to their columns from `start` on, and values (B, H, S, C) of x (B, S, D).

        H is here `num_kv_heads`.
        """
        parts = torch.split(self.key_value(x), self.kv_widths, dim=-1)
        keys = self._split(parts[0], self.num_kv_heads, self.key_norm)
        return self.positions.rotate(keys, start), self._split(parts[1], self.num_kv_heads)

    def queries(self, x: Tensor, start: int | Tensor) -> Tensor:
        """Return the queries (B, H, T, C) of x (B, T, D), rotated to their positions from `start` on."""
        return self.positions.rotate(self._split(self.query(x), self.num_heads, self.query_norm), start)

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
        """Return (B, T, D) of x (B, T, D), keys and values (B, H, S, C); the mask expands to (B, H, T, S).

        Keys and values have `num_kv_heads` heads.

        With `positions`, the rows of x are the last T of the S columns. `start` is the position of the first
        row of x, as given to `keys_values`; S - T by default. `is_causal` says that the mask hides the later
        columns and nothing else.
        """
        num_keys = keys.shape[2]
        start = num_keys - x.shape[1] if start is None else start
        queries = self.queries(x, start)
        if self.num_kv_heads < self.num_heads:
            each = self.num_heads // self.num_kv_heads
            keys, values = (part.repeat_interleave(each, dim=1) for part in (keys, values))
        biased = self.positions.masked_bias(queries, num_keys, mask)
        if self.shows_weights:
            weights = fused.attention_weights(queries, keys, biased)
            self.record(weights, Factors(queries, keys))
            context = self.positions.weighted_sum(self.dropout(weights).to(values.dtype), values)
        else:
            rate, is_causal = self.dropout.current_rate, is_causal and biased is mask
            context = fused.attention(queries, keys, values, biased, rate, is_causal=is_causal)
        return self.output(context.transpose(1, 2).flatten(2))

    @property
    def shows_weights(self) -> bool:
        """Whether the weights themselves are needed, which no fused function returns."""
        return self.recorded is not None or self.positions.needs_weights

    def attend_cached(
        self, x: Tensor, keys: list[Tensor], values: list[Tensor], rows: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Return (N, 1, D) of x (N, 1, D), which attends to chunks of keys and values (R, H, L, C).

        x is the last column. Query n attends to row rows[n, i] of each chunk i: `rows` (N, chunks) int32. In
        the first chunk `mask` (R, L) allows some columns, in the others all are allowed. For evaluation where
        `kernels.usable`, unless `shows_weights` or keys have fewer heads than queries; the definition is
        `forward` over the gathered rows.
        """
        num_keys = sum(chunk.shape[2] for chunk in keys)
        queries = self.queries(x, num_keys - 1)
        bias = self.positions.bias(queries, num_keys)
        return self.output(fused.attention_cached(queries, keys, values, rows, mask, bias))

    def _split(self, x: Tensor, num_heads: int, norm: RmsNorm | None = None) -> Tensor:
        """Return the heads (B, H, T, C) of x (B, T, H * C), each after its norm if there is one."""
        heads = x.view(*x.shape[:2], num_heads, -1)
        return (heads if norm is None else norm(heads)).transpose(1, 2)


@contextmanager
def recorded_attention(
    model: nn.Module, factors: dict[str, list[Factors]] | None = None
) -> Iterator[dict[str, list[Tensor]]]:
    """Collect attention weights while the block runs: by role, (B, H, T, S) float32 for each call.

    The calls of all modules of a role follow one another. A dict `factors` is filled in the same way with
    queries and keys, where there are some.
    """
    recorders = [module for module in model.modules() if isinstance(module, Recorder)]
    weights: dict[str, list[Tensor]] = {}
    for recorder in recorders:
        role = recorder.role.value
        recorder.recorded = weights.setdefault(role, [])
        recorder.factors = None if factors is None else factors.setdefault(role, [])
    try:
        yield weights
    finally:
        for recorder in recorders:
            recorder.recorded = recorder.factors = None


@contextmanager
def recorded_with_gradients(attention: Recorder) -> Iterator[list[Tensor]]:
    """Collect the weights of one attention alone while the block runs; gradients flow back from them."""
    attention.recorded, attention.records_gradients = [], True
    try:
        yield attention.recorded
    finally:
        attention.recorded, attention.records_gradients = None, False
