"""Muon: matrices move along their momentum made orthogonal, everything else by Adam, under one learning rate.

The momentum of a matrix is replaced by the nearest matrix whose singular values are all about 1, so that an
update changes every direction alike. It is scaled to the root mean square of an update of Adam: one schedule
then suits both kinds of parameters (Liu et al. 2025, section 2.2).

Muon is for the linear maps inside a model. Each map is one matrix: keys and values, the two halves of a
gated feed-forward block and the gates of a recurrent cell lie packed in one parameter and are taken apart.
Embeddings, the output layer, biases, norms, maps to a single number and weight-normalised matrices (whose
length and direction are parameters of their own) are Adam's.

Muon: Jordan et al. 2024, with the coefficients given there. Weight decay is decoupled throughout.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nmt.kernels.fused import Linear
from nmt.runtime import resolve_precision
from nmt.runtime_config import Precision, RuntimeConfig

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of x, x^3 and x^5 in the polynomial of one iteration: steep at 0, flat around 1."""
SMALLEST_NORM = 1e-7
"""Smallest norm to divide a matrix by, so that a matrix without a gradient stays where it is."""


def orthogonalised(matrices: Tensor, iterations: int) -> Tensor:
    """Return `matrices` (N, R, C) with their singular values, at most 1, replaced by numbers around 1.

    Newton-Schulz: matrix products that apply one odd polynomial to the singular values, again and again.
    """
    linear, cubic, quintic = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices
    for _ in range(iterations):
        squares = x.mT @ x if tall else x @ x.mT  # of the shorter side
        polynomial = torch.baddbmm(squares, squares, squares, beta=cubic, alpha=quintic)
        left, right = (x, polynomial) if tall else (polynomial, x)
        x = torch.baddbmm(x, left, right, beta=linear)
    return x


def packed_matrices(model: nn.Module) -> dict[Tensor, list[int]]:
    """Return the parameters that Muon is for, each with the numbers of rows of the matrices packed in it."""
    elsewhere = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    output = getattr(model, "output", None)
    if isinstance(output, nn.Module):
        elsewhere |= {id(p) for p in output.parameters()}

    matrices: dict[Tensor, list[int]] = {}
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.RNNBase):
            for parameter in module.parameters(recurse=False):
                if parameter.ndim == 2 and min(parameter.shape) > 1 and id(parameter) not in elsewhere:
                    gate = module.hidden_size if isinstance(module, nn.RNNBase) else len(parameter)
                    matrices[parameter] = [gate] * (len(parameter) // gate)
    for module in model.modules():
        if isinstance(module, Linear) and module.weight in matrices:
            matrices[module.weight] = module.sizes
    return matrices


class Muon(torch.optim.Optimizer):
    """Muon over `matrices`, as `packed_matrices` returns them, and fused AdamW over the groups `others`.

    The first of `param_groups` is Muon's. Its update of a matrix has a root mean square of `rms` times the
    learning rate. `step` expects gradients that are unscaled, and finite unless `found_inf` is 1.0, and never
    waits for the device.
    """

    found_inf: Tensor | None = None
    """A scalar on the device; where it is 1.0, `step` changes nothing, as in torch's fused optimizers."""

    def __init__(
        self,
        matrices: Mapping[Tensor, list[int]],
        others: list[dict[str, Any]],
        *,
        weight_decay: float,
        momentum: float,
        rms: float,
        iterations: int,
        betas: tuple[float, float],
        eps: float,
    ):
        self.packed = dict(matrices)
        self.momentum = momentum
        self.rms = rms
        self.iterations = iterations
        self.adam = torch.optim.AdamW(others, lr=0.0, betas=betas, eps=eps, fused=True)
        first: dict[str, Any] = {"params": list(matrices), "weight_decay": weight_decay}
        super().__init__([first, *self.adam.param_groups], {"lr": 0.0})

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether `step` looks at `found_inf` by itself; on CPU the caller reads the scalar."""
        return any(p.device.type != "cpu" for group in self.param_groups for p in group["params"][:1])

    def step(self) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        first, *others = self.param_groups
        self.adam.param_groups, self.adam.state = others, self.state  # both share a state, even a loaded one
        self.adam.found_inf = self.found_inf  # type: ignore[attr-defined]
        self.adam.step()
        with torch.no_grad():
            self._update(first)

    def _update(self, group: dict[str, Any]) -> None:
        """Update the matrices of `group` by Muon, all matrices of one shape together."""
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not parameters:
            return
        directions = self._directions(parameters)
        taken = 1.0 if self.found_inf is None else 1.0 - self.found_inf
        torch._foreach_mul_(parameters, 1.0 - group["lr"] * group["weight_decay"] * taken)
        batches: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for parameter, direction in zip(parameters, directions, strict=True):
            rows = self.packed[parameter]
            for weight, part in zip(torch.split(parameter, rows), torch.split(direction, rows), strict=True):
                batches[part.shape].append((weight, part))

        precision = resolve_precision(RuntimeConfig(), parameters[0].device)
        dtype = torch.bfloat16 if precision is Precision.bf16 else torch.float32
        for shape, pairs in batches.items():
            weights, parts = zip(*pairs, strict=True)
            batch = torch.stack(parts)  # (N, R, C)
            batch.div_(batch.norm(dim=(1, 2), keepdim=True).clamp(min=SMALLEST_NORM))
            updates = orthogonalised(batch.to(dtype), self.iterations).float() * taken
            # Singular values of 1 are a root mean square of 1 / sqrt(the longer side).
            torch._foreach_add_(
                weights, updates.unbind(), alpha=-group["lr"] * self.rms * math.sqrt(max(shape))
            )

    def _directions(self, parameters: list[Tensor]) -> list[Tensor]:
        """Update the momentum by the gradients and return the momentum one step ahead (Nesterov)."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        momenta = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        if self.found_inf is not None:
            pairs = zip(gradients, momenta, strict=True)
            gradients = [torch.where(self.found_inf > 0, momentum, gradient) for gradient, momentum in pairs]
        torch._foreach_lerp_(momenta, gradients, 1.0 - self.momentum)
        return list(torch._foreach_lerp(gradients, momenta, self.momentum))
