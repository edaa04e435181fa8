"""Lion: the sign of a momentum as the update.

Chen et al. 2023, Symbolic Discovery of Optimization Algorithms.
One moment of each weight where Adam has two, and every weight moves by the whole learning rate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """The optimizer of Chen et al. 2023, program 2, with decoupled weight decay."""

    def __init__(self, groups: Iterable[dict[str, Any]], *, betas: tuple[float, float]):
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0, "betas": betas})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            weights = [parameter for parameter in group["params"] if parameter.grad is not None]
            gradients = [parameter.grad for parameter in weights]
            for parameter in weights:
                if "momentum" not in self.state[parameter]:
                    self.state[parameter]["momentum"] = torch.zeros_like(parameter)
            moments = [self.state[parameter]["momentum"] for parameter in weights]
            if weights:
                beta1, beta2 = group["betas"]
                updates = torch._foreach_lerp(gradients, moments, beta1)
                torch._foreach_sign_(updates)
                torch._foreach_mul_(weights, 1.0 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(weights, updates, alpha=-group["lr"])
                torch._foreach_lerp_(moments, gradients, 1.0 - beta2)
