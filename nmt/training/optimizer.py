"""Optimizers, parameter groups, and learning-rate schedules as pure functions of the update number.

A schedule is one config dataclass, one function `foo(step, cfg, context)` and one line in `SCHEDULES`; steps
count optimizer updates from 1. Nothing here touches gradients: clipping and stepping belong to `nmt.runtime`.

Noam: Vaswani et al. 2017, section 5.3, equation 3. Adam: Kingma and Ba 2015.
AdamW: Loshchilov and Hutter 2019. Muon is in `nmt.training.muon`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nmt.checks import not_negative, positive, within
from nmt.errors import UserError
from nmt.training.muon import Muon, packed_matrices


class Algorithm(Enum):
    """How an update is computed from the gradients."""

    adam = "adam"
    adamw = "adamw"
    muon = "muon"


@dataclass
class OptimizerConfig:
    """The optimizer; each schedule adds its own fields."""

    schedule: str = ""
    """Row of `SCHEDULES`; set by choosing `optimizer=...`."""
    warmup_steps: int = 4000
    """Updates of linear growth from 0 to the peak."""
    algorithm: Algorithm = Algorithm.adam
    """adam, adamw with decoupled weight decay, or muon: matrices move along orthogonalised momentum, the
    other parameters by adamw, at the same learning rate."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.98
    """Decay of the second moment."""
    eps: float = 1e-9
    """Added to the root of the second moment."""
    weight_decay: float = 0.0
    """Applied to matrices only: never to biases, norms or embeddings."""
    clip_norm: float = 1.0
    """Gradients are scaled down to this global L2 norm; 0 turns clipping off."""
    muon_momentum: float = 0.95
    """Decay of the momentum of a matrix; of muon alone, like the other keys that begin so."""
    muon_rms: float = 0.2
    """Root mean square of the update of a matrix, as a share of the learning rate; 0.2 is about adam's."""
    muon_iterations: int = 5
    """Newton-Schulz iterations that make an update orthogonal; fewer are faster and less exact."""

    def __post_init__(self) -> None:
        within(self, "optimizer", "[0, 1)", "beta1", "beta2", "muon_momentum")
        not_negative(self, "optimizer", "warmup_steps", "weight_decay", "clip_norm")
        positive(self, "optimizer", "eps", "muon_rms", "muon_iterations")


@dataclass
class NoamConfig(OptimizerConfig):
    """factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5), as in the Transformer paper."""

    schedule: str = "noam"
    factor: float = 1.0
    """Multiplies the paper's formula; the peak it gives is printed at the start of training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "optimizer", "factor", "warmup_steps")


@dataclass
class PeakConfig(OptimizerConfig):
    """What the schedules have in common that are stated by their peak."""

    peak_rate: float = 5e-4
    """Highest learning rate, reached at the end of the warm-up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "optimizer", "peak_rate")


@dataclass
class InverseSqrtConfig(PeakConfig):
    """Linear warm-up to the peak, then decay with the inverse square root of the step."""

    schedule: str = "inverse_sqrt"


@dataclass
class DecayConfig(PeakConfig):
    """What the schedules have in common that end at a known step."""

    final_rate: float = 0.0
    """Learning rate at the end of the decay."""
    decay_steps: int | None = None
    """Update at which the decay ends, warm-up included; null: `trainer.max_steps`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative(self, "optimizer", "final_rate")
        if self.final_rate > self.peak_rate:
            raise UserError(
                f"optimizer.final_rate must not exceed optimizer.peak_rate={self.peak_rate}, "
                f"but is {self.final_rate}"
            )
        if self.decay_steps is not None and self.decay_steps <= self.warmup_steps:
            raise UserError(
                f"optimizer.decay_steps must be above optimizer.warmup_steps={self.warmup_steps}, "
                f"but is {self.decay_steps}"
            )


@dataclass
class LinearConfig(DecayConfig):
    """Linear warm-up to the peak, then a straight line to the final rate."""

    schedule: str = "linear"


@dataclass
class CosineConfig(DecayConfig):
    """Linear warm-up to the peak, then half a cosine to the final rate (Loshchilov and Hutter 2017)."""

    schedule: str = "cosine"


@dataclass
class PlateauConfig(PeakConfig):
    """Linear warm-up to the peak, then a cut whenever the validation loss has stopped improving."""

    schedule: str = "plateau"
    reduce_factor: float = 0.5
    """The rate is multiplied by this at each cut."""
    plateau_patience: int = 3
    """Validations without a better loss before a cut."""
    min_rate: float = 1e-8
    """The rate is never cut below this."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "optimizer", "(0, 1)", "reduce_factor")
        positive(self, "optimizer", "plateau_patience")
        not_negative(self, "optimizer", "min_rate")


@dataclass
class ConstantConfig(PeakConfig):
    """Linear warm-up to the peak, which then stays."""

    schedule: str = "constant"


class ScheduleContext(NamedTuple):
    """What a schedule may know besides the step and its config."""

    d_model: int
    max_steps: int | None = None
    """`trainer.max_steps`; the end of a decay that states no `decay_steps`."""
    num_cuts: int = 0
    """How often validation asked for a smaller rate (plateau only)."""


def warmup(step: int, cfg: PeakConfig) -> float:
    """Share of the peak that the warm-up allows at `step`: grows linearly to 1."""
    return min(1.0, step / cfg.warmup_steps) if cfg.warmup_steps else 1.0


def noam(step: int, cfg: NoamConfig, context: ScheduleContext) -> float:
    """Vaswani et al. 2017, equation 3, times `factor`."""
    growth, decay = step * math.pow(cfg.warmup_steps, -1.5), math.pow(step, -0.5)
    return cfg.factor * math.pow(context.d_model, -0.5) * min(growth, decay)


def inverse_sqrt(step: int, cfg: InverseSqrtConfig, context: ScheduleContext) -> float:
    """peak_rate * sqrt(warmup_steps / step) after the warm-up."""
    return cfg.peak_rate * min(warmup(step, cfg), math.sqrt(max(cfg.warmup_steps, 1) / step))


def _share_decayed(step: int, cfg: DecayConfig, context: ScheduleContext) -> float:
    """Share of the decay that lies behind `step`, from 0 to 1."""
    end = cfg.decay_steps or context.max_steps
    if end is None:
        raise UserError(
            f"optimizer={cfg.schedule} must know where its decay ends: "
            "set trainer.max_steps or optimizer.decay_steps"
        )
    return min(max((step - cfg.warmup_steps) / max(end - cfg.warmup_steps, 1), 0.0), 1.0)


def linear(step: int, cfg: LinearConfig, context: ScheduleContext) -> float:
    """From the peak to `final_rate` along a line."""
    left = 1.0 - _share_decayed(step, cfg, context)
    return warmup(step, cfg) * (cfg.final_rate + (cfg.peak_rate - cfg.final_rate) * left)


def cosine(step: int, cfg: CosineConfig, context: ScheduleContext) -> float:
    """From the peak to `final_rate` along half a cosine."""
    left = 0.5 * (1.0 + math.cos(math.pi * _share_decayed(step, cfg, context)))
    return warmup(step, cfg) * (cfg.final_rate + (cfg.peak_rate - cfg.final_rate) * left)


def plateau(step: int, cfg: PlateauConfig, context: ScheduleContext) -> float:
    """The peak, cut `num_cuts` times."""
    return warmup(step, cfg) * max(
        cfg.peak_rate * cfg.reduce_factor**context.num_cuts, min(cfg.min_rate, cfg.peak_rate)
    )


def constant(step: int, cfg: ConstantConfig, context: ScheduleContext) -> float:
    """The peak."""
    return warmup(step, cfg) * cfg.peak_rate


SCHEDULES: dict[str, tuple[type[OptimizerConfig], Callable[..., float]]] = {
    "noam": (NoamConfig, noam),
    "inverse_sqrt": (InverseSqrtConfig, inverse_sqrt),
    "linear": (LinearConfig, linear),
    "cosine": (CosineConfig, cosine),
    "plateau": (PlateauConfig, plateau),
    "constant": (ConstantConfig, constant),
}


def rate(step: int, cfg: OptimizerConfig, context: ScheduleContext) -> float:
    """Learning rate of update `step` (from 1)."""
    return SCHEDULES[cfg.schedule][1](step, cfg, context)


def peak(cfg: OptimizerConfig, context: ScheduleContext) -> float:
    """Highest learning rate of the schedule: every schedule peaks where its warm-up ends."""
    return rate(max(cfg.warmup_steps, 1), cfg, context)


def build_optimizer(cfg: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of `model`; the learning rate is 0 until `MixedPrecisionStep.step` sets that of its step.

    Raises:
        UserError: muon has nothing to do in this model.
    """
    betas = (cfg.beta1, cfg.beta2)
    if cfg.algorithm is Algorithm.muon:
        matrices = packed_matrices(model)
        if not matrices:
            raise UserError(
                "optimizer.algorithm=muon is for models with plain matrices besides the vocabulary, but this "
                "one has none; use optimizer.algorithm=adam or adamw"
            )
        return Muon(
            matrices,
            parameter_groups(model, cfg.weight_decay, without=matrices),
            weight_decay=cfg.weight_decay,
            momentum=cfg.muon_momentum,
            rms=cfg.muon_rms,
            iterations=cfg.muon_iterations,
            betas=betas,
            eps=cfg.eps,
        )
    kinds = {Algorithm.adam: torch.optim.Adam, Algorithm.adamw: torch.optim.AdamW}
    groups = parameter_groups(model, cfg.weight_decay)
    return kinds[cfg.algorithm](groups, lr=0.0, betas=betas, eps=cfg.eps, fused=True)


def parameter_groups(
    model: nn.Module, weight_decay: float, without: Collection[Tensor] = ()
) -> list[dict[str, object]]:
    """Matrices with weight decay; biases, norms and embeddings without. Tied parameters count once."""
    embeddings = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    left_out = {id(parameter) for parameter in without}
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for parameter in model.parameters():
        if id(parameter) not in left_out:
            matrix = parameter.ndim >= 2 and id(parameter) not in embeddings
            (decayed if matrix else plain).append(parameter)
    groups: list[dict[str, object]] = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The state of every parameter, by name: "encoder.0.weight/exp_avg" and so on."""
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]
) -> None:
    """Put back what `optimizer_tensors` returned; raise `UserError` when it is of another model."""
    parameters = dict(model.named_parameters())
    for name, value in tensors.items():
        parameter, _, key = name.rpartition("/")
        if parameter not in parameters:
            raise UserError(
                f"the stored optimizer state is of another model: it has {name!r}, "
                f"the model has no {parameter!r}"
            )
        target = parameters[parameter]
        # Fused kernels want everything where the weights are, even the number of steps.
        optimizer.state[target][key] = value.to(target.device, copy=True)
