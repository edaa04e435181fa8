"""Schedules against their formulas, parameter groups, and an optimizer that resumes bit for bit."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from nmt.errors import UserError
from nmt.layers.positions import Positions
from nmt.models.base import TranslationModel
from nmt.models.vocabulary import Tying
from nmt.training.optimizer import (
    SCHEDULES,
    Algorithm,
    ConstantConfig,
    CosineConfig,
    DecayConfig,
    InverseSqrtConfig,
    LinearConfig,
    NoamConfig,
    OptimizerConfig,
    PlateauConfig,
    ScheduleContext,
    build_optimizer,
    load_optimizer_tensors,
    optimizer_tensors,
    parameter_groups,
    peak,
    rate,
)

WARMUP = 40
CONTEXT = ScheduleContext(d_model=128, max_steps=400)
DECAYS = [name for name, (kind, _) in SCHEDULES.items() if issubclass(kind, DecayConfig)]


def config_of(schedule: str, **fields: Any) -> OptimizerConfig:
    cfg = SCHEDULES[schedule][0](**({"warmup_steps": WARMUP} | fields))
    assert cfg.schedule == schedule
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
def test_values_along_the_way(cfg: OptimizerConfig, step: int, expected: float) -> None:
    assert rate(step, cfg, CONTEXT) == pytest.approx(expected, abs=1e-12)


def test_plateau_cuts_down_to_its_lowest_rate() -> None:
    cfg = PlateauConfig(peak_rate=1e-3, warmup_steps=10, reduce_factor=0.1, min_rate=5e-6)
    rates = [rate(100, cfg, CONTEXT._replace(num_cuts=cuts)) for cuts in range(5)]
    assert rates == pytest.approx([1e-3, 1e-4, 1e-5, 5e-6, 5e-6])
    assert rate(5, cfg, CONTEXT._replace(num_cuts=1)) == pytest.approx(5e-5)


@pytest.mark.parametrize("schedule", DECAYS)
def test_a_decay_without_an_end(schedule: str) -> None:
    message = (
        f"optimizer={schedule} must know where its decay ends: set trainer.max_steps or optimizer.decay_steps"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        rate(1, config_of(schedule), ScheduleContext(d_model=128))
    assert rate(1, config_of(schedule, decay_steps=100), ScheduleContext(d_model=128)) > 0.0


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (NoamConfig, {"beta1": 1.0}, "optimizer.beta1 must be in [0, 1), but is 1.0"),
        (NoamConfig, {"beta2": -0.1}, "optimizer.beta2 must be in [0, 1), but is -0.1"),
        (NoamConfig, {"eps": 0.0}, "optimizer.eps must be positive, but is 0.0"),
        (NoamConfig, {"weight_decay": -1.0}, "optimizer.weight_decay must not be negative, but is -1.0"),
        (NoamConfig, {"clip_norm": -1.0}, "optimizer.clip_norm must not be negative, but is -1.0"),
        (NoamConfig, {"muon_momentum": 1.0}, "optimizer.muon_momentum must be in [0, 1), but is 1.0"),
        (NoamConfig, {"muon_rms": 0.0}, "optimizer.muon_rms must be positive, but is 0.0"),
        (NoamConfig, {"muon_iterations": 0}, "optimizer.muon_iterations must be positive, but is 0"),
        (NoamConfig, {"factor": 0.0}, "optimizer.factor must be positive, but is 0.0"),
        (NoamConfig, {"warmup_steps": 0}, "optimizer.warmup_steps must be positive, but is 0"),
        (ConstantConfig, {"peak_rate": 0.0}, "optimizer.peak_rate must be positive, but is 0.0"),
        (ConstantConfig, {"warmup_steps": -1}, "optimizer.warmup_steps must not be negative, but is -1"),
        (LinearConfig, {"final_rate": -1.0}, "optimizer.final_rate must not be negative, but is -1.0"),
        (
            LinearConfig,
            {"peak_rate": 0.5, "final_rate": 1.0},
            "optimizer.final_rate must not exceed optimizer.peak_rate=0.5, but is 1.0",
        ),
        (
            CosineConfig,
            {"warmup_steps": 100, "decay_steps": 100},
            "optimizer.decay_steps must be above optimizer.warmup_steps=100, but is 100",
        ),
        (
            PlateauConfig,
            {"reduce_factor": 1.0},
            "optimizer.reduce_factor must be in (0, 1), but is 1.0",
        ),
        (
            PlateauConfig,
            {"plateau_patience": -1},
            "optimizer.plateau_patience must be positive, but is -1",
        ),
        (PlateauConfig, {"min_rate": -1.0}, "optimizer.min_rate must not be negative, but is -1.0"),
    ],
)
def test_config_errors(kind: type[OptimizerConfig], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        kind(**fields)


def ids_of(parameters: object) -> list[int]:
    assert isinstance(parameters, list)
    return [id(parameter) for parameter in parameters]


@pytest.mark.parametrize("tying", Tying)
def test_weight_decay_is_for_matrices(tiny_model: Callable[..., TranslationModel], tying: Tying) -> None:
    model = tiny_model(tying=tying, positions=Positions.learned)
    decayed, plain = parameter_groups(model, 0.01)
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.01, 0.0)
    decayed_ids, plain_ids = (ids_of(group["params"]) for group in (decayed, plain))
    assert sorted(decayed_ids + plain_ids) == sorted(id(p) for p in model.parameters())  # each of them once

    for name, parameter in model.named_parameters(remove_duplicate=False):
        untied_output = name == "output.weight" and tying in (Tying.none, Tying.src_tgt)
        spared = name.endswith("bias") or "norm" in name or "embedding" in name or "positions" in name
        tied_output = name == "output.weight" and not untied_output
        assert id(parameter) in (plain_ids if spared or tied_output else decayed_ids), name


def test_a_model_without_matrices_has_one_group() -> None:
    assert len(parameter_groups(nn.LayerNorm(4), 0.01)) == 1


def test_adamw_decays_the_weights_themselves() -> None:
    """Where the gradient is zero, Adam leaves a weight alone and AdamW shrinks it by rate * weight_decay."""
    layer = nn.Linear(3, 2)
    before = layer.weight.detach().clone()
    optimizer = build_optimizer(ConstantConfig(algorithm=Algorithm.adamw, weight_decay=0.5), layer)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    torch.autograd.backward(layer(torch.zeros(1, 3)).sum())
    optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), before * (1 - 0.1 * 0.5))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    """A few updates whose data depend on nothing but the number of the step."""
    for step in steps:
        torch.manual_seed(step)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * step
        optimizer.zero_grad()
        torch.autograd.backward(model(torch.randn(4, 6)).square().sum())
        optimizer.step()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 2))


@pytest.mark.parametrize("algorithm", Algorithm)
def test_stored_optimizer_goes_on_bit_for_bit(algorithm: Algorithm) -> None:
    cfg = ConstantConfig(algorithm=algorithm, weight_decay=0.1)
    straight = network()
    stopped = network()
    stopped.load_state_dict(straight.state_dict())
    train(straight, build_optimizer(cfg, straight), range(1, 7))

    optimizer = build_optimizer(cfg, stopped)
    train(stopped, optimizer, range(1, 4))
    tensors = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, stopped).items()}
    adam, muon = ("step", "exp_avg", "exp_avg_sq"), ("momentum_buffer",)
    assert set(tensors) == {
        f"{name}/{key}"
        for name, parameter in stopped.named_parameters()
        for key in (muon if algorithm is Algorithm.muon and parameter.ndim == 2 else adam)
    }
    resumed = network()
    resumed.load_state_dict(stopped.state_dict())
    optimizer = build_optimizer(cfg, resumed)
    load_optimizer_tensors(optimizer, resumed, tensors)
    train(resumed, optimizer, range(4, 7))

    for ours, expected in zip(resumed.parameters(), straight.parameters(), strict=True):
        assert torch.equal(ours, expected)
    assert float(tensors["0.bias/step"]) == 3.0  # what was handed in is not shared


def test_optimizer_of_another_model() -> None:
    other = nn.Sequential(nn.Linear(6, 5))
    optimizer = build_optimizer(ConstantConfig(), other)
    message = (
        "the stored optimizer state is of another model: it has '2.weight/exp_avg', "
        "the model has no '2.weight'"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        load_optimizer_tensors(optimizer, other, {"2.weight/exp_avg": torch.zeros(2, 5)})
