"""Gradient checkpointing: what a layer computes on the way is dropped, and computed again in backward.

Memory for one layer is then needed at a time, besides the inputs of all layers, for the time of one more
forward pass (Chen et al. 2016). Random numbers are those of the first time, so that gradients are the same.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.utils.checkpoint import checkpoint

from nmt.errors import UserError


def stack_layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers of all stacks that are always called as a whole, over all positions at once.

    A list of tables of embeddings is no stack, nor is a list of what a weight is computed by.
    """
    lists = [
        one
        for one in module.modules()
        if isinstance(one, nn.ModuleList) and not isinstance(one, ParametrizationList)
    ]
    layers = [layer for one in lists for layer in one if not isinstance(layer, nn.Embedding)]
    return [layer for layer in layers if not getattr(layer, "is_stepped_through", False)]


def recompute_layers(model: nn.Module) -> None:
    """Make every layer of a stack drop what it computes in training; search and evaluation stay as they are.

    Raises:
        UserError: the model has no such layer.
    """
    layers = stack_layers(model)
    if not layers:
        raise UserError(
            "trainer.gradient_checkpointing=true drops what a layer computes over all positions at once, but "
            "a recurrent model has no such layers; set it to false, and lower trainer.batch_tokens"
        )
    for layer in layers:
        # Not a `forward` of its own, by which the layer would hold itself.
        layer.__class__ = _recomputing(type(layer))  # type: ignore[arg-type]  # classes can be hashed


@cache
def _recomputing(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a class like `kind` whose `forward` is computed again in backward."""

    def forward(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return kind.forward(layer, *args, **kwargs)
        return checkpoint(kind.forward, layer, *args, use_reentrant=False, **kwargs)

    return type(kind.__name__, (kind,), {"forward": forward})
