"""Muon: matrices move along their momentum made orthogonal, everything else by Adam, under one learning rate.

The momentum of a matrix is replaced by the nearest matrix whose singular values are all about 1, so that an
update changes every direction alike. It is scaled to the root mean square of an update of Adam: one schedule
then suits both kinds of parameters (Liu et al. 2025, section 2.2).

Muon is for the linear maps inside a model. Each map is one matrix: keys and values, the two halves of a
gated feed-forward block and the gates of a recurrent cell lie packed in one parameter and are taken apart.
Embeddings, the output layer, biases, norms, maps to a single number and weight-normalised matrices (whose
length and direction are parameters of their own) are Adam's.

Several processes, each of which holds all weights, orthogonalise a share of the matrices each and exchange
the results.

Muon: Jordan et al. 2024, with the coefficients given there. Weight decay is decoupled throughout.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nmt.distributed import ALONE, World
from nmt.kernels.fused import Linear
from nmt.runtime import resolve_precision
from nmt.runtime_config import Precision, RuntimeConfig
from nmt.training.adapting.lora import LowRankUpdate

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
                plain = parameter.ndim == 2 and parameter.requires_grad
                if plain and min(parameter.shape) > 1 and id(parameter) not in elsewhere:
                    gate = module.hidden_size if isinstance(module, nn.RNNBase) else len(parameter)
                    matrices[parameter] = [gate] * (len(parameter) // gate)
    for module in model.modules():
        if isinstance(module, LowRankUpdate):  # whose own `weight` is computed
            if module.lora_up in matrices:
                matrices[module.lora_up] = list(module.lora_sizes)
            if module.lora_down in matrices:
                matrices[module.lora_down] = [module.lora_cfg.rank] * len(module.lora_sizes)
        elif isinstance(module, Linear) and module.weight in matrices:
            matrices[module.weight] = module.sizes
    return matrices


def matrices_by_rank(shapes: Sequence[torch.Size], num_ranks: int) -> list[list[int]]:
    """Return the numbers of the matrices of each rank, in ascending order: about the same work for all.

    The matrix that takes longest goes first, to the rank that has the least to do.
    """
    works = [max(shape) * min(shape) ** 2 for shape in shapes]
    loads, shares = [0] * num_ranks, [list[int]() for _ in range(num_ranks)]
    for number in sorted(range(len(works)), key=lambda number: (-works[number], number)):
        rank = loads.index(min(loads))
        loads[rank] += works[number]
        shares[rank].append(number)
    return [sorted(share) for share in shares]


class Muon(torch.optim.Optimizer):
    """Muon over the groups `own`, and fused AdamW over the groups `others`.

    `matrices` are those of `own`, as `packed_matrices` returns them. The first of `param_groups` are Muon's.
    Its update of a matrix has a root mean square of `rms` times the learning rate. `step` expects gradients
    that are unscaled, and finite unless `found_inf` is 1.0, and never waits for the device.
    """

    found_inf: Tensor | None = None
    """A scalar on the device; where it is 1.0, `step` changes nothing, as in torch's fused optimizers."""
    world: World = ALONE
    """The processes that share the work; all of them call `step`, with the same gradients."""

    def __init__(
        self,
        matrices: Mapping[Tensor, list[int]],
        own: list[dict[str, Any]],
        others: list[dict[str, Any]],
        *,
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
        self._dtype: torch.dtype | None = None
        others = others or [{"params": [], "weight_decay": 0.0, "rate": 1.0}]  # as where LoRA alone learns
        self.adam = torch.optim.AdamW(others, lr=0.0, betas=betas, eps=eps, fused=True)
        self.num_own = len(own)
        super().__init__([*own, *self.adam.param_groups], {"lr": 0.0})

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether `step` looks at `found_inf` by itself; on CPU the caller reads the scalar."""
        return any(p.device.type != "cpu" for group in self.param_groups for p in group["params"][:1])

    def step(self) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        own, self.adam.param_groups = self.param_groups[: self.num_own], self.param_groups[self.num_own :]
        self.adam.state = self.state  # both share a state, even a loaded one
        self.adam.found_inf = self.found_inf  # type: ignore[attr-defined]
        self.adam.step()
        with torch.no_grad():
            for group in own:
                self._update(group)

    def _update(self, group: dict[str, Any]) -> None:
        """Update the matrices of `group` by Muon, all matrices of one shape together."""
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not parameters:
            return
        directions = self._directions(parameters)
        taken = 1.0 if self.found_inf is None else 1.0 - self.found_inf
        torch._foreach_mul_(parameters, 1.0 - group["lr"] * group["weight_decay"] * taken)
        matrices = [
            pair
            for parameter, direction in zip(parameters, directions, strict=True)
            for pair in zip(
                *(torch.split(x, self.packed[parameter]) for x in (parameter, direction)), strict=True
            )
        ]
        shares = matrices_by_rank([direction.shape for _, direction in matrices], self.world.size)
        longest = max(sum(matrices[number][1].numel() for number in share) for share in shares)
        own = parameters[0].new_zeros(longest, dtype=self._number_format(parameters[0].device))
        self._orthogonalise([matrices[number][1] for number in shares[self.world.rank]], own)
        for share, row in zip(shares, self.world.all_gather_rows(own), strict=True):
            weights = [matrices[number][0] for number in share]
            _add(weights, row.float() * taken, -group["lr"] * self.rms)

    def _number_format(self, device: torch.device) -> torch.dtype:
        """Return the number format of the matrix products, that of rank 0 on all ranks."""
        if self._dtype is None:
            precision = self.world.broadcast(resolve_precision(RuntimeConfig(), device).value)
            self._dtype = torch.bfloat16 if precision == Precision.bf16.value else torch.float32
        return self._dtype

    def _orthogonalise(self, matrices: Sequence[Tensor], flat: Tensor) -> None:
        """Write `matrices`, orthogonalised, into `flat` one after the other; all of a shape are a batch."""
        places = flat.split([x.numel() for x in matrices] + [len(flat) - sum(x.numel() for x in matrices)])
        for shape, numbers in _by_shape(matrices).items():
            batch = torch.stack([matrices[number] for number in numbers])  # (N, R, C)
            batch.div_(batch.norm(dim=(1, 2), keepdim=True).clamp(min=SMALLEST_NORM))
            found = orthogonalised(batch.to(flat.dtype), self.iterations)
            torch._foreach_copy_([places[number].view(shape) for number in numbers], found.unbind())

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


def _by_shape(matrices: Sequence[Tensor]) -> dict[torch.Size, list[int]]:
    """Return the numbers of the matrices of each shape."""
    numbers: dict[torch.Size, list[int]] = defaultdict(list)
    for number, matrix in enumerate(matrices):
        numbers[matrix.shape].append(number)
    return numbers


def _add(weights: Sequence[Tensor], flat: Tensor, alpha: float) -> None:
    """Add the orthogonal matrices in `flat` to `weights`, scaled to a root mean square of `alpha`."""
    sizes = [weight.numel() for weight in weights]
    updates = flat.split([*sizes, len(flat) - sum(sizes)])
    for shape, numbers in _by_shape(weights).items():
        # Singular values of 1 are a root mean square of 1 / sqrt(the longer side).
        torch._foreach_add_(
            [weights[number] for number in numbers],
            [updates[number].view(shape) for number in numbers],
            alpha=alpha * math.sqrt(max(shape)),
        )
