"""A copy of a model for search on a GPU that is 16-bit throughout, and so casts nothing from layer to layer.

Weights, residual stream, norms and cache have 16 bits; the sums of products and of attention stay float32
inside of their kernels, and search takes the logarithms of probabilities in float32.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from nmt.layers.blocks import AnyModule


def can_be_half(model: nn.Module) -> bool:
    """Return whether `in_half` serves for `model`: not for recurrent layers, whose kernels know no bf16."""
    return not any(isinstance(module, nn.RNNBase) for module in model.modules())


def in_half(model: AnyModule, dtype: torch.dtype) -> AnyModule:
    """Return a copy of `model` in `dtype`, or `model` itself if it is one; tied weights stay tied.

    Tables of positions are shared, and stay float32: what is computed from them is rounded once. For use
    without gradients, in eval mode.
    """
    if next(model.parameters()).dtype is dtype:
        return model
    shared: dict[int, object] = {id(table): table for table in model.buffers()}
    for x in model.parameters():
        shared[id(x)] = nn.Parameter(x.detach().to(dtype), requires_grad=False)
    return copy.deepcopy(model, shared)
