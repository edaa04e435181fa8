"""A copy of a model for search whose linear maps multiply numbers of 16 or 8 bits.

Only the operands of the products are rounded: weights once, inputs as they come. Sums, norms, softmax and the
residual stream stay float32, so the copy takes the place of the model in any search. So do keys and values,
but for those of Transformers with packed weights (AMX), which `nmt.models.fused_step` keeps in bf16.

8 bits: each output of a map has a scale for its weights, and each row of inputs has one of its own, so that a
sentence has the same translation in every batch; sums are exact (Wu et al. 2016, section 6, and, with scales
of rows, Dettmers et al. 2022, section 2).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt import kernels
from nmt.layers.blocks import AnyModule, FeedForward
from nmt.runtime_config import Precision

DTYPES = {Precision.bf16: torch.bfloat16, Precision.fp16: torch.float16}
LARGEST_INT8 = 127
SMALLEST_SCALE = 1e-30
"""The scale of what is zero."""


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
        self._source = (linear,)  # in a tuple, so that it is no part of this module
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

    def of_rows(self, rows: Tensor) -> LowPrecisionLinear:
        """Return the map to the outputs `rows` (O',) alone."""
        dtype = torch.bfloat16 if self.tiles else self.weight.dtype
        return LowPrecisionLinear(_of_rows(self._source[0], rows), dtype, tiles=self.tiles)


class Int8Linear(nn.Module):
    """`linear` with its weights and its inputs rounded to 8 bits; float32 in and out.

    The kernel multiplies where the processor has instructions for it (VNNI), else oneDNN. Shapes: I inputs,
    O outputs.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.relu = False
        """Whether ReLU is applied to the result, in the same pass."""
        self.num_outputs = linear.out_features
        self._source = (linear,)  # in a tuple, so that it is no part of this module
        weight = linear.weight.detach()
        self.scales = (weight.abs().amax(1) / LARGEST_INT8).clamp_min(SMALLEST_SCALE)  # (O,)
        self.bias: Tensor | None = linear.bias
        rounded = (weight / self.scales[:, None]).round().to(torch.int8)
        self.by_kernel = kernels.has_int8()
        if self.by_kernel:
            self.packed, self.shifts = torch.ops.nmt.pack_int8(rounded)
        else:
            self.packed = torch.ops.onednn.qlinear_prepack(rounded, None)
            self.shifts = torch.zeros(self.num_outputs, dtype=torch.int32)

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., O) of x (..., I)."""
        rows = x.flatten(0, -2)
        if self.by_kernel:
            weight = (self.packed, self.shifts, self.scales, self.bias)
            y = torch.ops.nmt.int8_linear(rows.contiguous(), *weight, self.relu)
        else:
            y = self._by_torch(rows)
        return y.view(*x.shape[:-1], self.num_outputs)

    def of_rows(self, rows: Tensor) -> Int8Linear:
        """Return the map to the outputs `rows` (O',) alone."""
        return Int8Linear(_of_rows(self._source[0], rows))

    def _by_torch(self, rows: Tensor) -> Tensor:
        """Return (M, O) of rows (M, I)."""
        # Without VNNI, sums of two products of 8 bits would overflow: inputs have 7 bits there.
        largest = LARGEST_INT8 if _has_vnni() else LARGEST_INT8 // 2
        units = rows.abs().amax(1, keepdim=True).clamp_min(SMALLEST_SCALE) / largest  # (M, 1)
        shifted = (rows / units).round_().add_(largest + 1).to(torch.uint8)
        output: tuple[Any, ...] = (1.0, 0, torch.float32, "none", [], "")
        arguments = (1.0, largest + 1, self.packed, self.scales, self.shifts, None, *output)
        y = torch.ops.onednn.qlinear_pointwise(shifted, *arguments) * units
        y = y if self.bias is None else y + self.bias
        return F.relu(y) if self.relu else y


def _has_vnni() -> bool:
    """Return whether the processor adds up products of 8-bit numbers in 32 bits."""
    capabilities: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # not in torch 2.10
    return any(capabilities.get(name) for name in ("avx512_vnni", "avx_vnni", "amx_int8"))


LOW_PRECISION = (LowPrecisionLinear, Int8Linear)


def in_low_precision(model: AnyModule, precision: Precision) -> AnyModule:
    """Return `model` with its linear maps in `precision`; all other weights are shared.

    For fp32, and for a model that this function has returned before, return `model` itself. `precision` is a
    result of `search_precision`. For use without gradients, in eval mode.
    """
    if precision is Precision.fp32 or any(isinstance(module, LOW_PRECISION) for module in model.modules()):
        return model
    shared = {id(x): x for x in (*model.parameters(), *model.buffers())}
    result = copy.deepcopy(model, shared)
    on_cpu = next(model.parameters()).device.type == "cpu"
    tiles = precision is Precision.bf16 and on_cpu and kernels.load() and torch.ops.nmt.has_tiles()
    for module in list(result.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, _rounded(child, precision, tiles=tiles))
        if isinstance(module, FeedForward) and module.activation is F.relu:
            inner: object = module.inner
            assert isinstance(inner, LOW_PRECISION)
            inner.relu, module.activation = True, nn.Identity()
    return result


def _rounded(linear: nn.Linear, precision: Precision, *, tiles: bool) -> LowPrecisionLinear | Int8Linear:
    """Return `linear` in `precision`."""
    if precision is Precision.int8:
        return Int8Linear(linear)
    return LowPrecisionLinear(linear, DTYPES[precision], tiles=tiles)


def rows_of(linear: nn.Module, rows: Tensor) -> nn.Module:
    """Return the map to the outputs `rows` (O',) of `linear` alone, in its precision; for use in search."""
    if isinstance(linear, LOW_PRECISION):
        return linear.of_rows(rows)
    assert isinstance(linear, nn.Linear)
    return _of_rows(linear, rows)


def _of_rows(linear: nn.Linear, rows: Tensor) -> nn.Linear:
    result = nn.Linear(linear.in_features, len(rows), bias=linear.bias is not None, device="meta")
    for name, x in linear.named_parameters():
        setattr(result, name, nn.Parameter(x.detach()[rows], requires_grad=False))
    return result
