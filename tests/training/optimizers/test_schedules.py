"""Schedules against their formulas."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from nmt.errors import UserError
from nmt.training.optimizers.schedule_configs import (
    SCHEDULES,
    ConstantConfig,
    CosineConfig,
    DecayConfig,
    ExponentialConfig,
    InverseSqrtConfig,
    LinearConfig,
    NoamConfig,
    PlateauConfig,
    ScheduleConfig,
    StepConfig,
    WsdConfig,
)
from nmt.training.optimizers.schedules import ScheduleContext, peak, rate

WARMUP = 40
CONTEXT = ScheduleContext(d_model=128, max_steps=400)
DECAYS = [name for name, (kind, _) in SCHEDULES.items() if issubclass(kind, DecayConfig)]


def config_of(schedule: str, **fields: Any) -> ScheduleConfig:
    cfg = SCHEDULES[schedule][0](**({"warmup_steps": WARMUP} | fields))
    assert cfg.name == schedule
    return cfg


@pytest.mark.parametrize("factor", [1.0, 2.0])
@pytest.mark.parametrize(("d_model", "warmup_steps"), [(512, 4000), (128, 1)])
def test_noam_is_the_formula_of_the_paper(d_model: int, warmup_steps: int, factor: float) -> None:
    cfg, context = NoamConfig(factor=factor, warmup_steps=warmup_steps), ScheduleContext(d_model)
    for step in (1, warmup_steps, 2 * warmup_steps):
        expected = factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
        assert rate(step, cfg, context) == pytest.approx(expected, rel=1e-12)
    assert peak(cfg, context) == pytest.approx(factor * (d_model * warmup_steps) ** -0.5, rel=1e-12)


@pytest.mark.parametrize("warmup_steps", [1, WARMUP])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_rises_to_its_peak_and_never_above(schedule: str, warmup_steps: int) -> None:
    cfg = config_of(schedule, warmup_steps=warmup_steps)
    rates = [rate(step, cfg, CONTEXT) for step in range(1, 401)]
    assert all(value > 0.0 for value in rates[:-1])
    assert rates[-1] >= 0.0
    warmup, rest = rates[:warmup_steps], rates[warmup_steps - 1 :]
    assert warmup == sorted(set(warmup))
    assert rest == sorted(rest, reverse=True)
    assert max(rates) == peak(cfg, CONTEXT) == rates[warmup_steps - 1]
    assert rates[0] == pytest.approx(peak(cfg, CONTEXT) / warmup_steps)


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name != "noam"])
def test_without_warmup_the_first_rate_is_the_peak(schedule: str) -> None:
    cfg = config_of(schedule, warmup_steps=0, peak_rate=1e-3)
    rates = [rate(step, cfg, CONTEXT) for step in range(1, 401)]
    assert rates[0] == max(rates) == peak(cfg, CONTEXT)
    assert rates[0] == pytest.approx(1e-3, rel=0.01)


@pytest.mark.parametrize(
    ("cfg", "step", "expected"),
    [
        (InverseSqrtConfig(peak_rate=1e-3, warmup_steps=100), 400, 5e-4),
        (WsdConfig(peak_rate=1e-3, warmup_steps=100), 320, 1e-3),
        (WsdConfig(peak_rate=1e-3, warmup_steps=100), 340, 5e-4),
        (WsdConfig(peak_rate=1e-3, warmup_steps=100, final_rate=1e-4, decay_share=0.5), 250, 5.5e-4),
        (WsdConfig(peak_rate=1e-3, warmup_steps=100, decay_share=1.0), 175, 5e-4),
        (WsdConfig(peak_rate=1e-3, warmup_steps=100, final_rate=1e-4), 500, 1e-4),
        (ExponentialConfig(peak_rate=1e-3, warmup_steps=100, interval_steps=50), 200, 2.5e-4),
        (ExponentialConfig(peak_rate=1e-3, warmup_steps=100, interval_steps=100), 150, 1e-3 * math.sqrt(0.5)),
        (ExponentialConfig(peak_rate=1e-3, warmup_steps=0, interval_steps=1, min_rate=1e-5), 400, 1e-5),
        (StepConfig(peak_rate=1e-3, warmup_steps=100, interval_steps=50), 150, 1e-3),
        (StepConfig(peak_rate=1e-3, warmup_steps=100, interval_steps=50), 151, 5e-4),
        (StepConfig(peak_rate=1e-3, warmup_steps=100, interval_steps=50, decay_factor=0.1), 201, 1e-5),
        (ConstantConfig(peak_rate=1e-3, warmup_steps=100), 10_000, 1e-3),
        (LinearConfig(peak_rate=1e-3, warmup_steps=100), 250, 5e-4),
        (LinearConfig(peak_rate=1e-3, warmup_steps=100), 400, 0.0),
        (LinearConfig(peak_rate=1e-3, warmup_steps=100, final_rate=1e-4), 250, 5.5e-4),
        (LinearConfig(peak_rate=1e-3, warmup_steps=100, final_rate=1e-4), 400, 1e-4),
        (CosineConfig(peak_rate=1e-3, warmup_steps=100), 175, 1e-3 * (0.5 + 0.5 * math.sqrt(0.5))),
        (CosineConfig(peak_rate=1e-3, warmup_steps=100), 250, 5e-4),
        (CosineConfig(peak_rate=1e-3, warmup_steps=100, final_rate=1e-4), 400, 1e-4),
        (CosineConfig(peak_rate=1e-3, warmup_steps=100, final_rate=1e-4, decay_steps=200), 200, 1e-4),
        (CosineConfig(peak_rate=1e-3, warmup_steps=100, final_rate=1e-4, decay_steps=200), 300, 1e-4),
    ],
)
def test_values_along_the_way(cfg: ScheduleConfig, step: int, expected: float) -> None:
    assert rate(step, cfg, CONTEXT) == pytest.approx(expected, abs=1e-12)


def test_plateau_cuts_down_to_its_lowest_rate() -> None:
    cfg = PlateauConfig(peak_rate=1e-3, warmup_steps=10, reduce_factor=0.1, min_rate=5e-6)
    rates = [rate(100, cfg, CONTEXT._replace(num_cuts=cuts)) for cuts in range(5)]
    assert rates == pytest.approx([1e-3, 1e-4, 1e-5, 5e-6, 5e-6])
    assert rate(5, cfg, CONTEXT._replace(num_cuts=1)) == pytest.approx(5e-5)


@pytest.mark.parametrize("schedule", DECAYS)
def test_a_decay_without_an_end(schedule: str) -> None:
    message = (
        f"schedule={schedule} must know where its decay ends: set trainer.max_steps or schedule.decay_steps"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        rate(1, config_of(schedule), ScheduleContext(d_model=128))
    assert rate(1, config_of(schedule, decay_steps=100), ScheduleContext(d_model=128)) > 0.0


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (NoamConfig, {"factor": 0.0}, "schedule.factor must be positive, but is 0.0"),
        (NoamConfig, {"warmup_steps": 0}, "schedule.warmup_steps must be at least 1, but is 0"),
        (ConstantConfig, {"peak_rate": 0.0}, "schedule.peak_rate must be positive, but is 0.0"),
        (ConstantConfig, {"warmup_steps": -1}, "schedule.warmup_steps must not be negative, but is -1"),
        (LinearConfig, {"final_rate": -1.0}, "schedule.final_rate must not be negative, but is -1.0"),
        (
            LinearConfig,
            {"peak_rate": 0.5, "final_rate": 1.0},
            "schedule.final_rate must not exceed schedule.peak_rate=0.5, but is 1.0",
        ),
        (
            CosineConfig,
            {"warmup_steps": 100, "decay_steps": 100},
            "schedule.decay_steps must be above schedule.warmup_steps=100, but is 100",
        ),
        (
            PlateauConfig,
            {"reduce_factor": 1.0},
            "schedule.reduce_factor must be in (0, 1), but is 1.0",
        ),
        (
            PlateauConfig,
            {"plateau_patience": -1},
            "schedule.plateau_patience must be positive, but is -1",
        ),
        (PlateauConfig, {"min_rate": -1.0}, "schedule.min_rate must not be negative, but is -1.0"),
    ],
)
def test_config_errors(kind: type[ScheduleConfig], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        kind(**fields)
