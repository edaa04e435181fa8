"""Learning-rate schedules: pure functions of the update number.

A schedule is one config dataclass, one function `foo(step, cfg, context)` and one line in `SCHEDULES`; steps
count optimizer updates from 1. Knows no weights and no gradients.

Noam: Vaswani et al. 2017, section 5.3, equation 3.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from nmt.errors import UserError
from nmt.loading import loaded
from nmt.training.configs import (
    SCHEDULES,
    ConstantConfig,
    CosineConfig,
    DecayConfig,
    InverseSqrtConfig,
    LinearConfig,
    NoamConfig,
    PeakConfig,
    PlateauConfig,
    ScheduleConfig,
)


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


def rate(step: int, cfg: ScheduleConfig, context: ScheduleContext) -> float:
    """Return the learning rate of update `step` (from 1)."""
    found: float = loaded(SCHEDULES[cfg.name][1])(step, cfg, context)
    return found


def peak(cfg: ScheduleConfig, context: ScheduleContext) -> float:
    """Return the highest learning rate of the schedule: every schedule peaks where its warm-up ends."""
    return rate(max(cfg.warmup_steps, 1), cfg, context)
