"""Learning-rate schedules: pure functions of the update number.

A schedule is one config dataclass, one function `foo(step, cfg, context)` and one line in `SCHEDULES`; steps
count optimizer updates from 1. Knows no weights and no gradients.

Noam: Vaswani et al. 2017, section 5.3, equation 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from nmt.checks import not_negative, positive, within
from nmt.errors import UserError


@dataclass
class ScheduleConfig:
    """The learning rate of each update; each schedule adds its own fields."""

    name: str = ""
    """Row of `SCHEDULES`; set by choosing `schedule=...`."""
    warmup_steps: int = 4000
    """Updates of linear growth from 0 to the peak."""

    def __post_init__(self) -> None:
        not_negative(self, "schedule", "warmup_steps")


@dataclass
class NoamConfig(ScheduleConfig):
    """Rate factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) of the Transformer paper."""

    name: str = "noam"
    factor: float = 1.0
    """Factor of the paper's formula; the peak that results is printed at the start of training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "schedule", "factor", "warmup_steps")


@dataclass
class PeakConfig(ScheduleConfig):
    """Base of the schedules that are stated by their peak."""

    peak_rate: float = 5e-4
    """Highest learning rate, reached at the end of the warm-up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "schedule", "peak_rate")


@dataclass
class InverseSqrtConfig(PeakConfig):
    """Linear warm-up to the peak, then decay with the inverse square root of the step."""

    name: str = "inverse_sqrt"


@dataclass
class DecayConfig(PeakConfig):
    """Base of the schedules that end at a known step."""

    final_rate: float = 0.0
    """Learning rate at the end of the decay."""
    decay_steps: int | None = None
    """Update at which the decay ends, warm-up included; null: `trainer.max_steps`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative(self, "schedule", "final_rate")
        if self.final_rate > self.peak_rate:
            raise UserError(
                f"schedule.final_rate must not exceed schedule.peak_rate={self.peak_rate}, "
                f"but is {self.final_rate}"
            )
        if self.decay_steps is not None and self.decay_steps <= self.warmup_steps:
            raise UserError(
                f"schedule.decay_steps must be above schedule.warmup_steps={self.warmup_steps}, "
                f"but is {self.decay_steps}"
            )


@dataclass
class LinearConfig(DecayConfig):
    """Linear warm-up to the peak, then a straight line to the final rate."""

    name: str = "linear"


@dataclass
class CosineConfig(DecayConfig):
    """Linear warm-up to the peak, then half a cosine to the final rate (Loshchilov and Hutter 2017)."""

    name: str = "cosine"


@dataclass
class PlateauConfig(PeakConfig):
    """Linear warm-up to the peak, then a cut whenever the validation loss has stopped improving."""

    name: str = "plateau"
    reduce_factor: float = 0.5
    """Factor of the rate at each cut."""
    plateau_patience: int = 3
    """Number of validations without a better loss before a cut."""
    min_rate: float = 1e-8
    """Lowest rate that cuts lead to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "schedule", "(0, 1)", "reduce_factor")
        positive(self, "schedule", "plateau_patience")
        not_negative(self, "schedule", "min_rate")


@dataclass
class ConstantConfig(PeakConfig):
    """Linear warm-up to the peak, which then stays."""

    name: str = "constant"


class ScheduleContext(NamedTuple):
    """All that a schedule may know besides the step and its config."""

    d_model: int
    max_steps: int | None = None
    """`trainer.max_steps`; the end of a decay that states no `decay_steps`."""
    num_cuts: int = 0
    """Number of times that validation asked for a smaller rate (plateau only)."""


def warmup(step: int, cfg: PeakConfig) -> float:
    """Return the share of the peak that the warm-up allows at `step`: it grows linearly to 1."""
    return min(1.0, step / cfg.warmup_steps) if cfg.warmup_steps else 1.0


def noam(step: int, cfg: NoamConfig, context: ScheduleContext) -> float:
    """Return the rate of Vaswani et al. 2017, equation 3, times `factor`."""
    growth, decay = step * math.pow(cfg.warmup_steps, -1.5), math.pow(step, -0.5)
    return cfg.factor * math.pow(context.d_model, -0.5) * min(growth, decay)


def inverse_sqrt(step: int, cfg: InverseSqrtConfig, context: ScheduleContext) -> float:
    """Return peak_rate * sqrt(warmup_steps / step) after the warm-up."""
    return cfg.peak_rate * min(warmup(step, cfg), math.sqrt(max(cfg.warmup_steps, 1) / step))


def _share_decayed(step: int, cfg: DecayConfig, context: ScheduleContext) -> float:
    """Return the share of the decay that is over at `step`, in [0, 1]."""
    end = cfg.decay_steps or context.max_steps
    if end is None:
        raise UserError(
            f"schedule={cfg.name} must know where its decay ends: "
            "set trainer.max_steps or schedule.decay_steps"
        )
    return min(max((step - cfg.warmup_steps) / max(end - cfg.warmup_steps, 1), 0.0), 1.0)


def linear(step: int, cfg: LinearConfig, context: ScheduleContext) -> float:
    """Return the rate on a line from the peak to `final_rate`, after the warm-up."""
    left = 1.0 - _share_decayed(step, cfg, context)
    return warmup(step, cfg) * (cfg.final_rate + (cfg.peak_rate - cfg.final_rate) * left)


def cosine(step: int, cfg: CosineConfig, context: ScheduleContext) -> float:
    """Return the rate on half a cosine from the peak to `final_rate`, after the warm-up."""
    left = 0.5 * (1.0 + math.cos(math.pi * _share_decayed(step, cfg, context)))
    return warmup(step, cfg) * (cfg.final_rate + (cfg.peak_rate - cfg.final_rate) * left)


def plateau(step: int, cfg: PlateauConfig, context: ScheduleContext) -> float:
    """Return the peak after the warm-up, cut `num_cuts` times."""
    return warmup(step, cfg) * max(
        cfg.peak_rate * cfg.reduce_factor**context.num_cuts, min(cfg.min_rate, cfg.peak_rate)
    )


def constant(step: int, cfg: ConstantConfig, context: ScheduleContext) -> float:
    """Return the peak after the warm-up."""
    return warmup(step, cfg) * cfg.peak_rate


SCHEDULES: dict[str, tuple[type[ScheduleConfig], Callable[..., float]]] = {
    "noam": (NoamConfig, noam),
    "inverse_sqrt": (InverseSqrtConfig, inverse_sqrt),
    "linear": (LinearConfig, linear),
    "cosine": (CosineConfig, cosine),
    "plateau": (PlateauConfig, plateau),
    "constant": (ConstantConfig, constant),
}


def rate(step: int, cfg: ScheduleConfig, context: ScheduleContext) -> float:
    """Return the learning rate of update `step` (from 1)."""
    return SCHEDULES[cfg.name][1](step, cfg, context)


def peak(cfg: ScheduleConfig, context: ScheduleContext) -> float:
    """Return the highest learning rate of the schedule: every schedule peaks where its warm-up ends."""
    return rate(max(cfg.warmup_steps, 1), cfg, context)
