"""Keys and values that attention reuses in search: those of earlier positions, and those of the source.

A `KeyValueCache` moves the tensors of each hypothesis with the beams. Where the kernels can be used, a
`ChunkedCache` leaves keys and values where they were written, one chunk of columns at a time, and only the
row numbers of a hypothesis, one for each chunk, follow the beams; `nmt.models.fused_step` has a cache for
kernels that go through all layers at once. Its `new_cache` chooses when a search starts.

The last column of the keys is the newest in every cache, which is all that attention relies on.

Shapes: B sentences, N hypotheses, T positions of the queries, S of the keys, D d_model, H heads, C channels
of a head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.layers.attention import MultiHeadAttention
from nmt.models.base import State

if TYPE_CHECKING:
    from typing_extensions import Self


Memory = tuple[Tensor, Tensor]
"""Keys and values (b, H, s, C) of b sentences, of which none has more than s tokens."""


@dataclass
class KeyValueCache(State):
    """The state of a stack of attention, whose keys and values grow by a column with every step."""

    prefix: int = 0
    """Columns of keys and values before those of target positions."""

    @property
    def columns(self) -> int | Tensor:
        """Columns written so far."""
        return self.prefix + self.position

    def mask(self, padding: Tensor | None = None) -> Tensor | None:
        """Return the mask (N, 1, 1, S) of keys for the step that adds the next column; None allows all.

        The first `padding` (N,) columns of a row are no tokens.
        """
        return None if padding is None else mask_after(padding, self.prefix + int(self.position) + 1)

    def through(self, layers: Sequence[Any], x: Tensor, padding: Tensor | None = None) -> Tensor:
        """Return what the `layers` make of x (N, 1, D), the next column of every row: (N, D).

        The first `padding` (N,) columns of a row are no tokens.
        """
        mask = self.mask(padding)
        for i, layer in enumerate(layers):
            x = layer.step(x, self, str(i), mask)
        return x[:, 0]

    def attend_to_past(
        self, attention: MultiHeadAttention, x: Tensor, layer: str, mask: Tensor | None = None
    ) -> Tensor:
        """Append the keys and values of x (N, T, D), most often T = 1, and return (N, T, D).

        All columns S are attended to, or those that `mask`, which broadcasts to (N, H, T, S), allows. T > 1
        is for an empty cache only.
        """
        new = attention.keys_values(x, self.columns)
        keys, values = map(self._append, (f"{layer}.keys", f"{layer}.values"), new)
        return attention(x, keys, values, mask, self.columns)

    def _append(self, name: str, new: Tensor) -> Tensor:
        """Append the columns `new` to the stored tensor `name`, and return that (N, H, S, C)."""
        if name in self.target:
            new = torch.cat([self.make_room(self.target[name]), new], dim=2)
        self.target[name] = new
        return new

    def make_room(self, columns: Tensor) -> Tensor:
        """Return the `columns` (N, H, S, C) that stay when one is appended: here, all."""
        return columns

    def remember_source(self, src_mask: Tensor, memories: Iterable[Sequence[Memory]]) -> None:
        """Store the keys and values of the source for each layer, in parts; `src_mask` (B, S)."""
        self.source["mask"] = src_mask
        for i, parts in enumerate(memories):
            keys, values = joined(parts, src_mask.shape[1])
            self.source[f"{i}.keys"], self.source[f"{i}.values"] = keys, values

    def attend_to_source(self, attention: MultiHeadAttention, x: Tensor, layer: str) -> Tensor:
        """Return (N, 1, D) of x (N, 1, D): the hypotheses of a sentence share its keys and values."""
        mask = self.source["mask"]
        per_sentence = x.view(len(mask), -1, x.shape[-1])
        keys, values = self.source[f"{layer}.keys"], self.source[f"{layer}.values"]
        return attention(per_sentence, keys, values, mask[:, None, None, :]).view_as(x)


@dataclass
class ChunkedCache(KeyValueCache):
    """A cache of tensors that never move, for the kernels of search: each hypothesis knows its rows.

    `target["places"]` (N, chunks) int32 is the row of a hypothesis in each chunk of columns, and
    `target["sentences"]` (N, 1) int32 its row in the keys and values of the source.
    """

    chunks: dict[str, list[Tensor]] = field(default_factory=dict)
    """Keys and values (rows, H, columns, C) in the order of their writing, and masks (rows, columns)."""

    def select(self, rows: Tensor | None, sentences: Tensor | None = None) -> Self:
        selected = super().select(rows, sentences)
        selected.chunks = {name: list(chunks) for name, chunks in self.chunks.items()}
        return selected

    def mask(self, padding: Tensor | None = None) -> None:
        """Return None: `attend_to_past` keeps the mask of the first chunk, and nothing else is padding."""

    def attend_to_past(
        self, attention: MultiHeadAttention, x: Tensor, layer: str, mask: Tensor | None = None
    ) -> Tensor:
        new = attention.keys_values(x, self.columns)
        keys, values = map(self._append_chunk, (f"{layer}.keys", f"{layer}.values"), new)
        if x.shape[1] == 1:
            (of_prefix,) = self.chunks.get("prefix_mask", [None])
            return attention.attend_cached(x, keys, values, self.target["places"], of_prefix)
        if mask is not None:
            self.chunks["prefix_mask"] = [mask[:, 0, -1].contiguous()]
        return attention(x, *new, mask)

    def _append_chunk(self, name: str, new: Tensor) -> list[Tensor]:
        """Append the chunk `new` to those of `name`, return all; the first of a step numbers its rows."""
        chunks, places = self.chunks.setdefault(name, []), self.target["places"]
        chunks.append(new)
        if len(chunks) > places.shape[1]:
            self.target["places"] = torch.cat([places, numbered_rows(len(new))], dim=1)
        return chunks

    def remember_source(self, src_mask: Tensor, memories: Iterable[Sequence[Memory]]) -> None:
        self.target["sentences"] = numbered_rows(len(src_mask))
        self.chunks["source.mask"] = [src_mask.contiguous()]
        for i, parts in enumerate(memories):
            keys, values = joined(parts, src_mask.shape[1])
            self.chunks[f"source.{i}.keys"], self.chunks[f"source.{i}.values"] = [keys], [values]

    def attend_to_source(self, attention: MultiHeadAttention, x: Tensor, layer: str) -> Tensor:
        keys, values = self.chunks[f"source.{layer}.keys"], self.chunks[f"source.{layer}.values"]
        (mask,) = self.chunks["source.mask"]
        return attention.attend_cached(x, keys, values, self.target["sentences"], mask)


def joined(parts: Sequence[Memory], columns: int) -> Memory:
    """Return the keys and values (B, H, S, C) of all sentences; the `columns` that a part lacks are 0."""
    if len(parts) == 1 and parts[0][0].shape[2] == columns:
        return parts[0]
    keys, values = (
        torch.cat([F.pad(x, (0, 0, 0, columns - x.shape[2])) for x in several])
        for several in zip(*parts, strict=True)
    )
    return keys, values


def mask_after(padding: Tensor, num_columns: int) -> Tensor:
    """Return (N, 1, 1, S), False in the first `padding` (N,) of S = `num_columns` columns."""
    return (torch.arange(num_columns, device=padding.device) >= padding[:, None])[:, None, None, :]


def numbered_rows(num: int) -> Tensor:
    """Return (num, 1) int32: a row of its own for each hypothesis."""
    return torch.arange(num, dtype=torch.int32)[:, None]
