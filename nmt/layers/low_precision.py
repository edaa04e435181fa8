"""A copy of a model for search whose linear maps multiply numbers of 16 or 8 bits, or are plain.

Only the operands of the products are rounded: weights once, inputs as they come. Sums, norms, softmax and the
residual stream stay float32, so the copy takes the place of the model in any search. So do keys and values,
but for those of Transformers with weights packed for a kernel, which `nmt.models.fused_step` keeps in bf16.

8 bits: each output of a map has a scale for its weights, and each row of inputs has one of its own, so that a
sentence has the same translation in every batch; sums are exact (Wu et al. 2016, section 6, and, with scales
of rows, Dettmers et al. 2022, section 2). Without VNNI the sum of two products must fit in 16 bits: then the
kernel has weights, and oneDNN inputs, of 7 bits.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt import kernels
from nmt.kernels import fused
from nmt.layers.blocks import AnyModule, FeedForward
from nmt.runtime import processor_has
from nmt.runtime_config import Precision

DTYPES = {Precision.bf16: torch.bfloat16, Precision.fp16: torch.float16}
PACKED = {Precision.bf16: kernels.has_tiles, Precision.int8: kernels.has_int8}
"""Precision -> whether a kernel multiplies in it on this processor."""
LARGEST_INT8 = 127
VNNI = ("avx512_vnni", "avx_vnni", "amx_int8")
"""Instructions that add up products of 8-bit numbers in 32 bits."""
SMALLEST_SCALE = 1e-30
"""The scale of what is zero."""


class LowPrecisionLinear(nn.Module):
    """`linear` with its weights and its inputs rounded to 16 or 8 bits; float32 in and out.

    Where the processor has instructions for it (tiles of AMX for bf16, AVX2 or AVX-512 for 8 bits) a kernel
    multiplies packed weights, and sums up and returns float32. Elsewhere torch multiplies: bf16 and fp16
    with results that are rounded, too, 8 bits by oneDNN. Shapes: M rows, I inputs, O outputs.
    """

    def __init__(self, linear: nn.Linear, precision: Precision):
        super().__init__()
        self.precision = precision
        self.relu = False
        """Whether ReLU is applied to the result, in the same pass."""
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._source = (linear,)  # in a tuple, so that it is no part of this module
        self.bias: Tensor | None = linear.bias
        weight: Tensor = linear.weight.detach()
        self.is_packed = weight.device.type == "cpu" and precision in PACKED and PACKED[precision]()
        """Whether `weight` is in the layout of the kernel."""
        if precision is Precision.int8:
            largest = kernels.most_int8_weight() if self.is_packed else LARGEST_INT8
            self.scales = (weight.abs().amax(1) / largest).clamp_min(SMALLEST_SCALE)  # (O,)
            rounded = (weight / self.scales[:, None]).round().to(torch.int8)
            self.weight = (
                torch.ops.nmt.pack_int8(rounded, self.scales)
                if self.is_packed
                else torch.ops.onednn.qlinear_prepack(rounded, None)
            )
        elif self.is_packed:
            self.weight = torch.ops.nmt.pack_weights(weight)
        else:
            self.weight = weight.to(DTYPES[precision])

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., O) of x (..., I)."""
        rows = x.flatten(0, -2)
        if self.is_packed:
            y = torch.ops.nmt.linear_map(rows, self.weight, self.bias, self.out_features, self.relu)
        else:
            y = self._in_8_bits(rows) if self.precision is Precision.int8 else self._in_16_bits(rows)
            y = F.relu(y) if self.relu else y
        return y.view(*x.shape[:-1], self.out_features)

    def of_rows(self, rows: Tensor) -> LowPrecisionLinear:
        """Return the map to the outputs `rows` (O',) alone."""
        return LowPrecisionLinear(_of_rows(self._source[0], rows), self.precision)

    def _in_16_bits(self, rows: Tensor) -> Tensor:
        """Return (M, O) of rows (M, I) without a kernel."""
        dtype, bias = self.weight.dtype, self.bias
        return F.linear(rows.to(dtype), self.weight, None if bias is None else bias.to(dtype)).float()

    def _in_8_bits(self, rows: Tensor) -> Tensor:
        """Return (M, O) of rows (M, I) without a kernel."""
        largest = LARGEST_INT8 if processor_has(*VNNI) else LARGEST_INT8 // 2
        units = rows.abs().amax(1, keepdim=True).clamp_min(SMALLEST_SCALE) / largest  # (M, 1)
        shifted = (rows / units).round_().add_(largest + 1).to(torch.uint8)
        shifts = torch.zeros(self.out_features, dtype=torch.int32)
        output: tuple[Any, ...] = (1.0, 0, torch.float32, "none", [], "")
        arguments = (1.0, largest + 1, self.weight, self.scales, shifts, None, *output)
        y = torch.ops.onednn.qlinear_pointwise(shifted, *arguments) * units
        return y if self.bias is None else y + self.bias


def in_low_precision(model: AnyModule, precision: Precision) -> AnyModule:
    """Return `model` with its linear maps in `precision`; all other weights are shared.

    In fp32 these are the maps whose weights are computed whenever they are read, as those with an update of
    low rank or weight normalisation: they become plain, so that a search computes them once. Where none is to
    change, as in a model that this function has returned before, return `model` itself. `precision` is a
    result of `search_precision`. For use without gradients; the copy is in eval mode, as kernels want.
    """
    if any(isinstance(x, LowPrecisionLinear) for x in model.modules()):
        return model
    instead: dict[int, Any] = {}
    for linear in (x for x in model.modules() if isinstance(x, nn.Linear)):
        if precision is not Precision.fp32:
            instead[id(linear)] = LowPrecisionLinear(linear, precision)
        elif (weight := linear.weight) is not linear._parameters.get("weight"):
            instead[id(linear)] = _plain(weight, linear.bias)
    if not instead:
        return model
    shared = {id(x): x for x in (*model.parameters(), *model.buffers())}
    result = copy.deepcopy(model, shared | instead)
    for module in result.modules():
        inner: object = module.inner if isinstance(module, FeedForward) else None
        if isinstance(inner, LowPrecisionLinear) and module.activation is F.relu:
            inner.relu, module.activation = True, nn.Identity()
    return result.eval()


def rows_of(linear: nn.Module, rows: Tensor) -> nn.Module:
    """Return the map to the outputs `rows` (O',) of `linear` alone, in its precision; for use in search."""
    if isinstance(linear, LowPrecisionLinear):
        return linear.of_rows(rows)
    assert isinstance(linear, nn.Linear)
    return _of_rows(linear, rows)


def _of_rows(linear: nn.Linear, rows: Tensor) -> nn.Linear:
    """Return the map to the outputs `rows` (O',) alone, with a copy of their weights."""
    bias: Tensor | None = linear.bias
    return _plain(linear.weight.detach()[rows], None if bias is None else bias.detach()[rows])


def _plain(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return the map with this weight (O, I) and this bias (O,), which do not learn."""
    with torch.device("meta"):
        result = fused.Linear(weight.shape[1], len(weight), bias=bias is not None)
    result.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        result.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return result
