"""AdamW whose moments have 8 bits (Dettmers et al. 2022, 8-bit Optimizers via Block-wise Quantization).

A moment of a matrix is a level for each weight, and a scale for each block of a row: the largest value in the
block. Levels are dense near the scale. The first moment has 255, which reach down to 1e-6 of it on both sides
of 0; unlike there, the second moment is kept as its root, which is what an update divides by, and has 256,
none of which is 0, down to 5e-8. It then reaches further down than the first, so that no weight moves far
because its divisor was rounded to nothing. Vectors and narrow matrices keep float32.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from nmt.training.optimizers.ema import part_of_process
from nmt.training.optimizers.optimizer import OneByOne, parameter_groups
from nmt.training.optimizers.optimizer_configs import AdamW8bitConfig

COUNT, FIRST, ROOT, SCALE = "step", "exp_avg", "exp_avg_sq_root", "_scale"
BLOCK = 256
"""Weights that have one scale, in rows that such blocks divide; another row has one scale."""
LEAST_COLUMNS = 64
"""Weights in a row of the narrowest matrix whose moments have 8 bits; the rows of a vocabulary may change."""
DROPPED_BITS = 15
"""Last bits of a float32 that do not count for its level: the others are exact to 0.4%."""
FIRSTS = 1 << (32 - DROPPED_BITS)
CHUNK = 1 << 22
"""Weights whose moments are in float32 at a time, while they are updated."""


class AdamW8bit(OneByOne):
    """AdamW with moments of 8 bits, whose rows are those of the weights."""

    def new_state(self, parameter: Tensor) -> dict[str, Tensor]:
        state = {COUNT: torch.zeros(())}
        rows = parameter.detach().flatten(1) if parameter.ndim > 1 else None
        if rows is None or rows.shape[1] < LEAST_COLUMNS:
            return state | {name: torch.zeros_like(parameter) for name in (FIRST, ROOT)}
        scales = rows[:, : _blocks(rows.shape[1])]
        for name in (FIRST, ROOT):
            state[name] = torch.zeros_like(rows, dtype=torch.uint8)
            state[name + SCALE] = torch.zeros_like(scales, dtype=torch.float32)
        return state

    def update(self, parameter: Tensor, state: dict[str, Tensor], rate: float, weight_decay: float) -> None:
        """Move a parameter against its first moment, divided by the root of its second one."""
        assert parameter.grad is not None
        state[COUNT] += 1
        step, (beta1, beta2) = float(state[COUNT]), self.betas
        names = [name for name in state if name != COUNT]
        tensors = map(part_of_process, (parameter, parameter.grad, *map(state.__getitem__, names)))
        for weights, gradient, *kept in _in_chunks([*tensors]):
            moments = dict(zip(names, kept, strict=True))
            first, root = _read(moments, FIRST), _read(moments, ROOT)
            first.lerp_(gradient, 1.0 - beta1)
            root.square_().mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2).sqrt_()
            divisor = (root / (1.0 - beta2**step) ** 0.5).add_(self.eps)
            weights.mul_(1.0 - rate * weight_decay)
            weights.addcdiv_(first, divisor, value=-rate / (1.0 - beta1**step))
            _write(moments, FIRST, first)
            _write(moments, ROOT, root)


def _blocks(columns: int) -> int:
    """Return how many scales a row of so many weights has."""
    return columns // BLOCK if columns % BLOCK == 0 else 1


def _in_chunks(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the same rows of all tensors, as matrices, as many as have `CHUNK` weights; vectors whole."""
    assert tensors[0].is_contiguous(), "rows of weights would be copies"
    rows = [x.flatten(1) if x.ndim > 1 else x for x in tensors]
    weights = rows[0]
    count = CHUNK // weights.shape[1] if weights.ndim > 1 else len(weights)
    for first in range(0, len(weights), max(1, count)):  # a process may have no part of a tensor
        yield [x[first : first + count] for x in rows]


def _read(moments: dict[str, Tensor], name: str) -> Tensor:
    """Return a moment in float32; one that has 32 bits itself, to be changed in place."""
    kept, scales = moments[name], moments.get(name + SCALE)
    if scales is None:
        return kept
    values = _levels(name, kept.device)[kept.long()].view(*scales.shape, -1)
    return values.mul_(scales[..., None]).view_as(kept)


def _write(moments: dict[str, Tensor], name: str, values: Tensor) -> None:
    """Keep a moment: in 8 bits the largest values of its blocks, and the nearest levels."""
    kept, scales = moments[name], moments.get(name + SCALE)
    if scales is None:
        return
    blocks = values.view(*scales.shape, -1)
    torch.amax(blocks.abs(), -1, out=scales)
    shares = blocks / scales.clamp_min(torch.finfo(torch.float32).tiny)[..., None]
    firsts = (shares.view(torch.int32) >> DROPPED_BITS) & (FIRSTS - 1)
    kept.copy_(_nearest(name, kept.device)[firsts.long()].view_as(kept))


@functools.cache
def _levels(name: str, device: torch.device) -> Tensor:
    """Return the levels of a moment as shares of a scale, ascending: those of the first have signs.

    Of each power of ten there are half as many as of the next larger one, evenly spaced.
    """
    signed = name == FIRST
    bits = 7 if signed else 8
    counts = [2 ** (bits - 1 - power) for power in range(bits)]
    steps = [(power, n / count) for power, count in enumerate(counts) for n in range(1, count + 1)]
    shares = [10.0**-power * (0.1 + 0.9 * step) for power, step in steps]
    lowest = [0.0, *(-share for share in shares)] if signed else [min(shares) / 2]
    return torch.tensor(sorted([*lowest, *shares]), device=device)


@functools.cache
def _nearest(name: str, device: torch.device) -> Tensor:
    """Return the number of the nearest level of a moment for each beginning of the bits of a share."""
    middles = (torch.arange(FIRSTS, dtype=torch.int32) << DROPPED_BITS) + (1 << (DROPPED_BITS - 1))
    levels = _levels(name, torch.device("cpu"))
    return torch.bucketize(middles.view(torch.float32), (levels[1:] + levels[:-1]) / 2).byte().to(device)


def build_adamw_8bit(cfg: AdamW8bitConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW with moments of 8 bits over the parameters of `model`."""
    return AdamW8bit(parameter_groups(model, cfg), cfg.betas, cfg.eps)
