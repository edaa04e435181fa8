"""Kinds of positions, and the two kinds that are added to the embeddings.

Nothing here knows a vocabulary, a batch or a model family. Shapes: T positions, D d_model.

Sinusoids: Vaswani et al. 2017, section 3.5. Learned positions: Gehring et al. 2017, section 3.1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from nmt.errors import UserError


def sinusoids(length: int, d_model: int, *, device: torch.device | None = None) -> Tensor:
    """Return (length, D): sines in even, cosines in odd channels, wavelengths from 2 pi to 10000 * 2 pi.

    The angles are float64: in float32 they lose three digits by position 1000.
    """
    position = torch.arange(length, device=device, dtype=torch.float64)[:, None]
    channel = torch.arange(0, d_model, 2, device=device, dtype=torch.float64)
    angle = position * torch.exp(channel * (-math.log(10000.0) / d_model))
    table = torch.empty(length, d_model, device=device)
    table[:, 0::2] = torch.sin(angle)
    table[:, 1::2] = torch.cos(angle)[:, : d_model // 2]  # an odd D has one sine more
    return table


class PositionTable(nn.Module, ABC):
    """One vector per position."""

    @abstractmethod
    def forward(self, length: int) -> Tensor:
        """Return (length, D): positions 0 .. length - 1."""

    @property
    @abstractmethod
    def rows(self) -> Tensor:
        """The whole table (L, D), where L is at least the longest `length` so far."""

    def at(self, start: int | Tensor, num: int, padding: Tensor | None = None) -> Tensor:
        """Return (num, D): the positions of `num` columns from `start` on.

        With `padding` (B,), return (B, num, D): a sentence that begins with so many columns of padding counts
        its positions after these. A tensor `start` (), which the host does not read, must lie within `rows`.
        """
        rows = self(start + num) if isinstance(start, int) else self.rows
        if isinstance(start, int) and padding is None:
            return rows[start:]
        columns = start + torch.arange(num, device=rows.device)
        if padding is not None:
            columns = (columns - padding[:, None]).clamp(min=0)
        return rows[columns]


class SinusoidalPositions(PositionTable):
    """Fixed positions; the table grows with the longest sequence seen and is not part of a checkpoint."""

    def __init__(self, d_model: int):
        super().__init__()
        self.d_model = d_model
        self.register_buffer("table", sinusoids(512, d_model), persistent=False)
        self.table: Tensor

    def forward(self, length: int) -> Tensor:
        if length > len(self.table):
            with torch.inference_mode(False):  # training may use a table that search has made
                self.table = sinusoids(2 * length, self.d_model, device=self.table.device)
        return self.table[:length]

    @property
    def rows(self) -> Tensor:
        return self.table


class LearnedPositions(PositionTable):
    """One trained vector per position; sequences may not be longer than `max_length`.

    The vectors start from a normal distribution with standard deviation `std`, which should equal that of the
    embeddings: positions much smaller than the embeddings are drowned for a long time.
    """

    def __init__(self, d_model: int, max_length: int, *, std: float):
        super().__init__()
        self.max_length = max_length
        self.table = nn.Embedding(max_length, d_model)
        nn.init.normal_(self.table.weight, std=std)

    def forward(self, length: int) -> Tensor:
        """Return (length, D): positions 0 .. length - 1; raise `UserError` beyond `max_length`."""
        if length > self.max_length:
            raise UserError(
                f"a sequence of {length} tokens exceeds model.max_positions={self.max_length}; "
                "shorten the text, or train a model with more positions"
            )
        return self.table.weight[:length]

    @property
    def rows(self) -> Tensor:
        return self.table.weight
