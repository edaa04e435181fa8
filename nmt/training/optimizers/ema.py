"""The exponential moving average of the weights, which follows them from update to update.

The average of the last iterates of a stochastic optimizer is closer to the optimum than any of them (Polyak
and Juditsky 1992); as a teacher, it predicts better than the weights that it is the average of (Tarvainen and
Valpola 2017). Knows tensors by name; knows no model and no loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from nmt.runtime import step_unless


def decay_at(step: int, decay: float) -> float:
    """Return the share of the average that update `step` keeps, which rises to `decay`.

    Without the rise, the weights before the first update would count for long.
    """
    return min(decay, (1 + step) / (10 + step))


class MovingAverage:
    """The average of `weights`, in tensors of the same names and shapes, on the same devices.

    Each process averages the parts of the weights that it holds.
    """

    def __init__(self, tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor], decay: float):
        """Set `tensors`, which belong to the average from now on, to `weights`."""
        self.tensors = tensors
        self._weights = weights
        self.decay_at: Callable[[int], float] = partial(decay_at, decay=decay)
        """The share of the average that an update, by its number, keeps."""
        self._parts = [part_of_process(x) for x in tensors.values()]
        # A step of p - lr * (p - w) is one pass over the memory, which a GPU leaves out by itself.
        self._towards = torch.optim.SGD(self._parts, lr=0.0, weight_decay=1.0, maximize=True, fused=True)
        with torch.no_grad():
            for name, x in tensors.items():
                x.copy_(weights[name])

    def step(self, number: int, unusable: Tensor) -> None:
        """Follow the weights after update `number`, unless it was left out: `unusable`, a scalar, is 1.0.

        The host does not wait for a GPU.
        """
        for group in self._towards.param_groups:
            group["lr"] = 1.0 - self.decay_at(number)
        for part, name in zip(self._parts, self.tensors, strict=True):
            part.grad = part_of_process(self._weights[name])
        step_unless(self._towards, unusable)
        self._towards.zero_grad(set_to_none=True)


def part_of_process(tensor: Tensor) -> Tensor:
    """Return the part of `tensor` that this process holds, without a copy."""
    of_process = getattr(tensor.detach(), "to_local", None)
    return tensor.detach() if of_process is None else of_process()
