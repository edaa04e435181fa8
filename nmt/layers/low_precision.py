"""A copy of a model for search whose linear maps multiply 16-bit numbers.

Only the operands of the products are rounded: weights once, inputs as they come. Sums, norms, softmax, the
residual stream and the cache stay float32, so the copy takes the place of the model in any search.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt import kernels
from nmt.layers.blocks import AnyModule, FeedForward
from nmt.runtime_config import Precision

DTYPES = {Precision.bf16: torch.bfloat16, Precision.fp16: torch.float16}


class LowPrecisionLinear(nn.Module):
    """`linear` with its weights and its inputs rounded to `dtype`; float32 in and out.

    With `tiles` the kernel for AMX multiplies, which sums up and returns float32; without, torch multiplies,
    which rounds the results, too. Shapes: I inputs, O outputs.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype, *, tiles: bool):
        super().__init__()
        self.relu = False
        """Whether ReLU is applied to the result, in the same pass."""
        self.tiles = tiles
        self.num_outputs = linear.out_features
        weight: Tensor = linear.weight.detach()
        bias: Tensor | None = linear.bias
        self.weight = torch.ops.nmt.pack_weights(weight) if tiles else weight.to(dtype)
        self.bias = bias if bias is None or tiles else bias.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., O) of x (..., I)."""
        if not self.tiles:
            y = F.linear(x.to(self.weight.dtype), self.weight, self.bias).float()
            return F.relu(y) if self.relu else y
        y = torch.ops.nmt.packed_linear(x.flatten(0, -2), self.weight, self.bias, self.num_outputs, self.relu)
        return y.view(*x.shape[:-1], self.num_outputs)

    def best_of_hidden(self, hidden: Tensor, *rules: object) -> list[Tensor]:
        """Return the best continuations that the `rules` of the kernel allow, on tiles and without logits."""
        sizes = (self.weight, self.bias, self.num_outputs)
        return torch.ops.nmt.best_of_hidden(hidden, *sizes, *rules)


def in_low_precision(model: AnyModule, precision: Precision) -> AnyModule:
    """Return `model` with its linear maps in `precision`; all other weights are shared.

    For fp32, and for a model that this function has returned before, return `model` itself. `precision` is a
    result of `resolve_precision`. For use without gradients, in eval mode.
    """
    if precision is Precision.fp32 or any(
        isinstance(module, LowPrecisionLinear) for module in model.modules()
    ):
        return model
    shared = {id(x): x for x in (*model.parameters(), *model.buffers())}
    result = copy.deepcopy(model, shared)
    on_cpu = next(model.parameters()).device.type == "cpu"
    tiles = precision is Precision.bf16 and on_cpu and kernels.load() and torch.ops.nmt.has_tiles()
    for module in list(result.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, LowPrecisionLinear(child, DTYPES[precision], tiles=tiles))
        if isinstance(module, FeedForward) and module.activation is F.relu:
            inner: object = module.inner
            assert isinstance(inner, LowPrecisionLinear)
            inner.relu, module.activation = True, nn.Identity()
    return result
