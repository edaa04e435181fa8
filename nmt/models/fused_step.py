"""One step of search through all layers of a stack in one call of a kernel, where kernels know all of it.

`new_cache` decides that when a search starts, by what `nmt.models.fused_layers` says. A search that is not
so keeps one of the caches of `nmt.models.kv_cache`, and goes through the modules of its layers. Both give
the same results, but that the kernel keeps keys and values in bf16 where the weights are packed, in 16 or 8
bits.

The kernel knows attention, and the SSRU in its place, of which it keeps the cells and no column.

Shapes: B sentences, N hypotheses, L layers, H heads, C channels of a head, P columns of a chunk, S source
positions, D d_model, W channels of the keys and values of all heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nmt import kernels
from nmt.layers.attention import MultiHeadAttention
from nmt.layers.relative_positions import RotaryPositions
from nmt.models.fused_layers import FusedLayers, fused_layers
from nmt.models.kv_cache import ChunkedCache, KeyValueCache, Memory, numbered_rows

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass
class FusedCache(KeyValueCache):
    """A cache whose keys and values never move, for the kernel: each hypothesis knows its rows.

    `target["places"]` (N, chunks) int32 is the row of a hypothesis in each chunk, and `target["sentences"]`
    (N, 1) int32 its sentence. Of SSRUs there are no chunks, but `target["cells"]` (N, L, D).
    """

    layers: FusedLayers = field(kw_only=True)
    chunks: list[Tensor] = field(default_factory=list)
    """Keys and values (L, rows, P, W), in the order of their writing."""
    of_prefix: list[Tensor] = field(default_factory=list)
    """Keys and values (rows, P, W) of a prefix for each layer that has read it, until all have."""
    prefix_mask: Tensor | None = None
    """(rows, P), the columns of the prefix that may be attended to."""
    memory: list[list[Tensor]] = field(default_factory=lambda: [[], []])
    """For each layer the keys (B, H * C, S filled up) and the values (B, S, W - H * C) of the source, as the
    kernel `arrange_source` lays them out."""
    source_mask: Tensor | None = None
    """(B, S) bool."""

    def select(self, rows: Tensor | None, sentences: Tensor | None = None) -> Self:
        selected = super().select(rows, sentences)
        selected.chunks = list(self.chunks)
        return selected

    def mask(self, padding: Tensor | None = None) -> None:
        """Return None: the mask of the prefix is kept, and nothing else is padding."""

    def attend_to_past(
        self, attention: MultiHeadAttention, x: Tensor, layer: str, mask: Tensor | None = None
    ) -> Tensor:
        """Read a prefix x (N, P, D); see `KeyValueCache.attend_to_past`."""
        new = attention.keys_values(x, self.columns)
        self.of_prefix.append(torch.cat([part.transpose(1, 2).flatten(2) for part in new], dim=2))
        if len(self.of_prefix) == len(self.layers.positions):
            self._append_chunk(torch.stack(self.of_prefix).to(self.layers.dtype))
            self.of_prefix.clear()
            self.prefix_mask = None if mask is None else mask[:, 0, -1].contiguous()
        return attention(x, *new, mask)

    def _append_chunk(self, chunk: Tensor) -> None:
        self.chunks.append(chunk)
        self.target["places"] = torch.cat([self.target["places"], numbered_rows(chunk.shape[1])], dim=1)

    def remember_source(self, src_mask: Tensor, memories: Iterable[Sequence[Memory]]) -> None:
        self.target["sentences"] = numbered_rows(len(src_mask))
        self.source_mask = src_mask.contiguous()
        rounds = self.layers.dtype is torch.bfloat16
        for parts in memories:
            keys, values = ([part[side] for part in parts] for side in (0, 1))
            arranged = torch.ops.nmt.arrange_source(keys, values, src_mask.shape[1], rounds)
            for known, own in zip(self.memory, arranged, strict=True):
                known.append(own)

    def through(self, layers: Sequence[Any], x: Tensor, padding: Tensor | None = None) -> Tensor:
        column, fused = int(self.columns), self.layers
        positions, sentences, cells = fused.positions, self.target.get("sentences"), self.target.get("cells")
        angles = [one.angles.at(column, 1) for one in positions[:1] if isinstance(one, RotaryPositions)]
        biases = [one.bias(x[:, None], column + 1) for one in positions]
        out, new = torch.ops.nmt.decoder_step(
            x[:, 0],
            fused.weights,
            *fused.sizes,
            fused.dtype is torch.bfloat16,
            self.chunks,
            self.target["places"],
            self.prefix_mask,
            angles[0] if angles else None,
            [bias.contiguous() for bias in biases if bias is not None],
            *self.memory,
            self.source_mask,
            sentences,
            cells,
        )
        if cells is None:
            self._append_chunk(new)
        else:
            self.target["cells"] = new
        return out


def new_cache(layers: Sequence[Any], like: Tensor, num_rows: int) -> KeyValueCache:
    """Return an empty cache of `num_rows` rows, for the kernels where these can be used.

    `layers` are those of a decoder, or of a decoder-only model; `like` has their device and type.
    """
    modules = [module for layer in layers for module in layer.modules()]
    attentions = [module for module in modules if isinstance(module, MultiHeadAttention)]
    if not kernels.usable(like) or any(
        one.training or one.shows_weights or one.num_kv_heads < one.num_heads for one in attentions
    ):
        return KeyValueCache()
    target, fused = {"places": torch.empty(num_rows, 0, dtype=torch.int32)}, fused_layers(layers)
    if fused is None:
        return ChunkedCache(target=target)
    if not fused.positions:
        width = len(layers[0].feed_forward.residual.norm.weight)  # not that of the encoder
        target["cells"] = torch.zeros(num_rows, len(layers), width)
    return FusedCache(target=target, layers=fused)
