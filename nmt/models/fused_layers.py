"""Layers as those kernels take them that go through a stack in one call, and the encoder in such a call.

Linear maps must be plain or packed, the parts of a layer those of `nmt.layers` and not hooked, and nobody may
want to see attention weights. Other layers are gone through as the modules that they are.

Shapes: B sentences, S source positions, D d_model, C channels of a head, N source tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nmt import kernels
from nmt.kernels.fused import LayerNorm, Linear, RmsNorm, is_dense
from nmt.layers.attention import QK_EPS, AttentionRole, MultiHeadAttention
from nmt.layers.blocks import FeedForward, Residual
from nmt.layers.low_precision import LowPrecisionLinear
from nmt.layers.relative_positions import RelativePositions, RotaryPositions
from nmt.layers.summaries import Ssru
from nmt.models.stack import FeedForwardSublayer, SelfAttentionLayer, SummarySublayer, through

BLOCKS = (MultiHeadAttention, Ssru, FeedForward)
"""Blocks of sublayers that the kernels know; one derived from them may do something else."""
LONGEST_SOURCE = 128
"""Tokens up to which the kernel of the encoder is as fast as its modules, whose attention is torch's."""


@dataclass
class FusedLayers:
    """The layers of a stack as the kernel takes them."""

    weights: list[Tensor | None]
    """Weight and bias of all norms and linear maps, in the order of `decoder_step` in step.cpp
    and `encoder_layers` in encoder.cpp."""
    sizes: tuple[object, ...]
    """What follows the weights among its arguments."""
    dtype: torch.dtype
    """Type of keys and values."""
    positions: list[RelativePositions]
    """Those of self-attention in each layer; none with SSRUs."""


def encoded(
    layers: Sequence[Any],
    x: Tensor,
    src_mask: Tensor,
    prepared_mask: Tensor,
    drop: float = 0.0,
) -> Tensor:
    """Return what the layers of an encoder make of x (B, S, D); `drop` is that of `stack.through`.

    `prepared_mask` is `src_mask` (B, S) as attention takes it. Where the kernel knows the layers, only the
    positions that the mask allows are computed, and the others are 0.
    """
    fused = None
    is_plain = {type(layer) for layer in layers} == {SelfAttentionLayer} and not drop
    is_usable = kernels.usable(x) and not torch.is_autocast_enabled(x.device.type)
    if is_plain and is_usable and x.shape[1] <= LONGEST_SOURCE:
        fused = fused_layers(layers)
    if fused is None or any(type(one) not in (RelativePositions, RotaryPositions) for one in fused.positions):
        return through(layers, x, prepared_mask, drop=drop)
    rows, columns = src_mask.nonzero(as_tuple=True)  # (N,)
    angles, first = None, fused.positions[0]
    if isinstance(first, RotaryPositions):
        angles = first.angles.at(0, src_mask.shape[1])[columns]
    out = torch.zeros_like(x)
    lengths = src_mask.sum(1)
    new = torch.ops.nmt.encoder_layers(x[rows, columns], fused.weights, *fused.sizes, lengths, angles)
    out[rows, columns] = new
    return out


def fused_layers(layers: Sequence[Any]) -> FusedLayers | None:
    """Return the layers for the kernel; None where they have something that it does not know."""
    if any(_is_special(module) for layer in layers for module in layer.modules()):
        return None
    sublayers = [part for layer in layers for part in _sublayers(layer)]
    if any(type(x) is not Residual or type(y) not in BLOCKS for x, y, _ in sublayers):
        return None
    if len({tuple(map(_traits, _sublayers(layer))) for layer in layers}) > 1:
        return None
    norms = [residual.norm for residual, *_ in sublayers]
    maps = [getattr(block, name) for _, block, names in sublayers for name in names]
    if len({(type(norm), getattr(norm, "eps", None)) for norm in norms}) > 1:
        return None
    if type(norms[0]) not in (LayerNorm, RmsNorm) or not all(map(_is_known, maps)):
        return None
    blocks = [block for _, block, _ in sublayers]
    weights = [x for residual, block, names in sublayers for x in _weights(residual.norm, block, names)]
    attentions = [block for block in blocks if isinstance(block, MultiHeadAttention)]
    attention, block = attentions[0], layers[0].feed_forward.block
    heads, (keys, values) = attention.num_heads, attention.widths
    sizes = (len(layers), heads, keys // heads, values // heads, block.d_ff, sublayers[0][0].pre)
    is_rms = isinstance(norms[0], RmsNorm)
    dtype = torch.bfloat16 if isinstance(maps[0], LowPrecisionLinear) else torch.float32
    positions = [one.positions for one in attentions if one.role is not AttentionRole.cross]
    return FusedLayers(weights, (*sizes, is_rms, norms[0].eps, QK_EPS, block.kind.value), dtype, positions)


def _sublayers(layer: Any) -> list[tuple[Residual, Any, tuple[str, ...]]]:
    """Return for each sublayer its residual connection, its block, and the maps that a step goes through."""
    own, last = layer.self_attention, layer.feed_forward
    if isinstance(own, SummarySublayer):
        parts: list[Any] = [(own.residual, own.summary, ("maps",))]
    else:
        parts = [(own.residual, own.attention, ("query", "key_value", "output"))]
    if not isinstance(layer, SelfAttentionLayer):
        cross = layer.cross_attention
        parts.append((cross.residual, cross.attention, ("query", "output")))
    return [*parts, (last.residual, last.block, ("inner", "outer"))]


def _traits(sublayer: tuple[Residual, Any, tuple[str, ...]]) -> tuple[object, ...]:
    """Return what the kernels want to be alike in all layers, besides the kind of the norms."""
    residual, block, _ = sublayer
    if isinstance(block, MultiHeadAttention):
        return residual.pre, block.num_heads, *block.widths, type(block.positions)
    return residual.pre, *((block.d_ff, block.kind) if isinstance(block, FeedForward) else ())


def _weights(norm: Any, block: Any, names: Sequence[str]) -> Iterator[Tensor | None]:
    """Yield the weights of a sublayer: those of the norm and of the maps, then of the norms of heads."""
    yield from (norm.weight, getattr(norm, "bias", None))
    for linear in map(block.get_submodule, names):
        yield from (linear.weight, block.bias if isinstance(block, Ssru) else linear.bias)
    if isinstance(block, MultiHeadAttention):
        of_heads = [block.query_norm, *([block.key_norm] if "key_value" in names else [])]
        yield from (None if one is None else one.weight for one in of_heads)


def _is_special(module: nn.Module) -> bool:
    """Return whether a module does more than the kernels know, or is in training."""
    if isinstance(module, MultiHeadAttention) and (
        module.shows_weights or module.num_kv_heads < module.num_heads
    ):
        return True
    if isinstance(module, FeedForwardSublayer) and not isinstance(module.adapter, nn.Identity):
        return True
    return bool(module.training or module._forward_hooks or module._forward_pre_hooks)


def _is_known(linear: nn.Module) -> bool:
    """Return whether the kernel multiplies by this: packed weights, or float32 as they are."""
    if isinstance(linear, LowPrecisionLinear):
        return linear.is_packed
    return type(linear) is Linear and is_dense(linear.weight)
