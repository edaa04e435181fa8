"""Optimizers and their parameter groups.

An optimizer is one config dataclass, one function `build_foo(cfg, model)` and one row of `OPTIMIZERS`.
Clipping and stepping belong to `nmt.runtime`, learning rates to `nmt.training.optimizers.schedules`.

Adam: Kingma and Ba 2015. AdamW: Loshchilov and Hutter 2019. Adafactor: Shazeer and Stern 2018. Muon is in
`nmt.training.optimizers.muon`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from nmt.distributed import ALONE, World
from nmt.loading import loaded
from nmt.runtime import part_of
from nmt.training.adapting.freezing import matching
from nmt.training.checkpoint import require_match
from nmt.training.optimizers.muon import Muon, packed_matrices
from nmt.training.optimizers.optimizer_configs import (
    OPTIMIZERS,
    AdafactorConfig,
    AdamConfig,
    AdamWConfig,
    MuonConfig,
    OptimizerConfig,
    SgdConfig,
    WeightGroup,
)


def build_adam(cfg: AdamConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return Adam over the parameters of `model`."""
    groups = parameter_groups(model, cfg)
    return torch.optim.Adam(groups, lr=0.0, betas=cfg.betas, eps=cfg.eps, fused=True)


def build_adamw(cfg: AdamWConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW over the parameters of `model`."""
    groups = parameter_groups(model, cfg)
    return torch.optim.AdamW(groups, lr=0.0, betas=cfg.betas, eps=cfg.eps, fused=True)


def build_muon(cfg: MuonConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return Muon over the matrices of `model`, which must have some."""
    matrices = packed_matrices(model)
    others = [parameter for parameter in model.parameters() if parameter not in matrices]
    return Muon(
        matrices,
        parameter_groups(model, cfg, matrices),
        parameter_groups(model, cfg, others),
        momentum=cfg.momentum,
        rms=cfg.rms,
        iterations=cfg.iterations,
        betas=cfg.betas,
        eps=cfg.eps,
    )


def build_adafactor(cfg: AdafactorConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return Adafactor over the parameters of `model`, without a first moment."""
    return torch.optim.Adafactor(
        parameter_groups(model, cfg),
        lr=0.0,
        beta2_decay=-cfg.beta2_decay,
        eps=(1e-15, cfg.min_scale),  # squared in the floor of the estimate: 1e-30, as in the paper
        d=cfg.clip_update,
    )


class OneByOne(torch.optim.Optimizer, ABC):
    """Base of optimizers of ours that update each tensor by itself, and have the moments of Adam."""

    def __init__(self, groups: list[dict[str, object]], betas: tuple[float, float], eps: float):
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0})
        self.betas, self.eps = betas, eps

    @abstractmethod
    def new_state(self, parameter: Tensor) -> dict[str, Tensor]:
        """Return what is kept of a parameter before its first update."""

    @abstractmethod
    def update(self, parameter: Tensor, state: dict[str, Tensor], rate: float, weight_decay: float) -> None:
        """Update a parameter that has a gradient, and what is kept of it."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    if not state:
                        state.update(self.new_state(parameter))
                    self.update(parameter, state, group["lr"], group["weight_decay"])


class Sgd(torch.optim.SGD):
    """SGD whose momentum begins as zeros.

    That of torch, fused, begins as memory without a value, in which an update that is left out leaves it.
    """

    def step(self) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"] if group["momentum"] else ():
                if parameter.grad is not None and "momentum_buffer" not in self.state[parameter]:
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        super().step()


def build_sgd(cfg: SgdConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return gradient descent over the parameters of `model`; torch has no fused one for weights in parts."""
    groups = parameter_groups(model, cfg)
    is_whole = not any(hasattr(parameter, "full_tensor") for parameter in model.parameters())
    return Sgd(groups, lr=0.0, momentum=cfg.momentum, nesterov=cfg.nesterov, fused=is_whole)


def build_optimizer(cfg: OptimizerConfig, model: nn.Module, world: World = ALONE) -> torch.optim.Optimizer:
    """Return the optimizer of `model`; its learning rate is 0 until `MixedPrecisionStep.step` sets one.

    The ranks of `world` share the work of Muon; each of them updates all weights that it holds.
    """
    made: torch.optim.Optimizer = loaded(OPTIMIZERS[cfg.name][1])(cfg, model)
    if isinstance(made, Muon):
        made.world = world
    return made


def parameter_groups(
    model: nn.Module, cfg: OptimizerConfig, parameters: Iterable[Tensor] | None = None
) -> list[dict[str, object]]:
    """Return the parameters of `model`, or some of them, by their weight decay and the factor of their rate.

    Matrices have the decay of `cfg`, biases, norms and embeddings have none, and what `cfg.groups` names has
    its own. No tensor is there twice, and none that is frozen.

    Raises:
        UserError: a pattern of `cfg.groups` matches no name.
    """
    embeddings = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    own = _own_groups(model, cfg)
    found: dict[tuple[bool, float, float], list[Tensor]] = {}
    for parameter in model.parameters() if parameters is None else parameters:
        if parameter.requires_grad:
            is_matrix = parameter.ndim >= 2 and id(parameter) not in embeddings
            group = own.get(id(parameter), WeightGroup([]))
            decay = cfg.weight_decay if is_matrix else 0.0
            decay = decay if group.weight_decay is None else group.weight_decay
            found.setdefault((is_matrix, decay, group.rate), []).append(parameter)
    # Matrices first: the order in which their norms are added up when gradients are clipped.
    ordered = sorted(found.items(), key=lambda item: not item[0][0])
    return [{"params": group, "weight_decay": decay, "rate": rate} for (_, decay, rate), group in ordered]


def _own_groups(model: nn.Module, cfg: OptimizerConfig) -> dict[int, WeightGroup]:
    """Return the group of `cfg.groups` for the id of each parameter that has one, by any of its names."""
    named = dict(model.named_parameters(remove_duplicate=False))
    found: dict[int, WeightGroup] = {}
    for number, group in enumerate(cfg.own_groups()):
        for name in matching(group.weights, named, f"optimizer.groups[{number}].weights"):
            found.setdefault(id(named[name]), group)
    return found


def reserved(optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return tensors as large as what the optimizer will keep of some parameters, on their devices."""
    return [torch.empty_like(kept, device=x.device) for x in parameters for kept in _kept(optimizer, x)]


def kept_bytes(optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor]) -> int:
    """Return the size of what the optimizer will keep of some parameters, but for counts of updates."""
    return sum(kept.nbytes for x in parameters for kept in _kept(optimizer, x))


def _kept(optimizer: torch.optim.Optimizer, parameter: Tensor) -> list[Tensor]:
    """Return tensors of the shapes and types of what the optimizer will keep of a parameter, of no memory."""
    like = torch.empty_like(parameter, device="meta")
    if isinstance(optimizer, OneByOne):
        return [*optimizer.new_state(like).values()]
    if isinstance(optimizer, Sgd):
        return [like] if optimizer.defaults["momentum"] else []
    if isinstance(optimizer, Muon) and parameter in optimizer.packed:
        return [like]
    if isinstance(optimizer, torch.optim.Adafactor):
        return [like[..., :1], like[..., :1, :]] if like.ndim > 1 else [like]
    return [like, like]  # the two moments of Adam


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the state of every parameter, by name: "encoder.0.weight/exp_avg" and so on."""
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Load the state that `optimizer_tensors` returned, before the weights: those of `model` may be lost.

    Of what is split between processes each keeps its part. No more is on a device than the state, and one
    whole tensor of it.

    Raises:
        UserError: the state is of another model or another optimizer.
    """
    parameters = {name: x for name, x in model.named_parameters() if x.requires_grad}
    stored = {name.rpartition("/")[0] for name in tensors}  # what has no gradient has no state
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # makes a state of the names, shapes and types of every later one
    made = optimizer_tensors(optimizer, model)
    wanted = {name: torch.empty_like(x, device="meta") for name, x in made.items()}
    devices = {name: x.device for name, x in made.items()}
    optimizer.zero_grad(set_to_none=True)
    optimizer.state.clear()
    del made
    require_match(
        tensors,
        {name: value for name, value in wanted.items() if name.rpartition("/")[0] in stored},
        "the optimizer's tensors of the checkpoint",
    )
    for name, value in tensors.items():
        parameter_name, _, key = name.rpartition("/")
        target = parameters[parameter_name]
        # Where the optimizer has it: fused kernels want even the number of steps where the weights are, and
        # a number that the host reads in each update is on the host.
        held = value.to(devices[name], copy=True)
        optimizer.state[target][key] = part_of(held, target) if held.ndim else held
