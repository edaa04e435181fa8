"""Learning-rate schedules: pure functions of the update number.

A schedule is one config dataclass, one function `foo(step, cfg, context)` and one line in `SCHEDULES`; steps
count optimizer updates from 1. Knows no weights and no gradients.

Noam: Vaswani et al. 2017, section 5.3, equation 3. Warm-up, stable, decay: Hu et al. 2024 (MiniCPM), with the
shape of the decay of Hägele et al. 2024, section 3.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from nmt.errors import UserError
from nmt.loading import loaded
from nmt.training.optimizers.schedule_configs import (
    SCHEDULES,
    ConstantConfig,
    CosineConfig,
    DecayConfig,
    ExponentialConfig,
    IntervalConfig,
    InverseSqrtConfig,
    LinearConfig,
    NoamConfig,
    PeakConfig,
    PlateauConfig,
    ScheduleConfig,
    StepConfig,
    WsdConfig,
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


def _end_of_decay(cfg: DecayConfig, context: ScheduleContext) -> int:
    """Return the step at which the decay ends; raise `UserError` when nothing says so."""
    end = cfg.decay_steps or context.max_steps
    if end is None:
        raise UserError(
            f"schedule={cfg.name} must know where its decay ends: "
            "set trainer.max_steps or schedule.decay_steps"
        )
    return end


def _share_over(step: int, begin: float, end: float) -> float:
    """Return the share of the steps from `begin` to `end` that is over at `step`, in [0, 1]."""
    return min(max((step - begin) / max(end - begin, 1), 0.0), 1.0)


def _share_decayed(step: int, cfg: DecayConfig, context: ScheduleContext) -> float:
    """Return the share of a decay right after the warm-up that is over at `step`, in [0, 1]."""
    return _share_over(step, cfg.warmup_steps, _end_of_decay(cfg, context))


def linear(step: int, cfg: LinearConfig, context: ScheduleContext) -> float:
    """Return the rate on a line from the peak to `final_rate`, after the warm-up."""
    left = 1.0 - _share_decayed(step, cfg, context)
    return warmup(step, cfg) * (cfg.final_rate + (cfg.peak_rate - cfg.final_rate) * left)


def cosine(step: int, cfg: CosineConfig, context: ScheduleContext) -> float:
    """Return the rate on half a cosine from the peak to `final_rate`, after the warm-up."""
    left = 0.5 * (1.0 + math.cos(math.pi * _share_decayed(step, cfg, context)))
    return warmup(step, cfg) * (cfg.final_rate + (cfg.peak_rate - cfg.final_rate) * left)


def wsd(step: int, cfg: WsdConfig, context: ScheduleContext) -> float:
    """Return the peak after the warm-up, and at the end 1 - sqrt(share of the decay) of the way from it."""
    end = _end_of_decay(cfg, context)
    begin = max(end * (1.0 - cfg.decay_share), cfg.warmup_steps)
    left = 1.0 - math.sqrt(_share_over(step, begin, end))
    return warmup(step, cfg) * (cfg.final_rate + (cfg.peak_rate - cfg.final_rate) * left)


def _after_intervals(number: float, step: int, cfg: IntervalConfig) -> float:
    """Return the rate after this number of intervals."""
    lowest = min(cfg.min_rate, cfg.peak_rate)
    return warmup(step, cfg) * max(cfg.peak_rate * math.pow(cfg.decay_factor, number), lowest)


def exponential(step: int, cfg: ExponentialConfig, context: ScheduleContext) -> float:
    """Return the peak, after the warm-up multiplied by the same factor at every step."""
    return _after_intervals(max(step - cfg.warmup_steps, 0) / cfg.interval_steps, step, cfg)


def stepwise(step: int, cfg: StepConfig, context: ScheduleContext) -> float:
    """Return the peak, after the warm-up cut at the end of every interval."""
    return _after_intervals(max(step - cfg.warmup_steps - 1, 0) // cfg.interval_steps, step, cfg)


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
