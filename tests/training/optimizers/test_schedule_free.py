"""Schedule-Free AdamW: its three points, the average that is the model, and what it is refused with."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nmt import cli
from nmt.runtime import step_unless
from nmt.training.checkpoint import CheckpointStore
from nmt.training.optimizers.ema import MovingAverage
from nmt.training.optimizers.optimizer import build_optimizer, load_optimizer_tensors, optimizer_tensors
from nmt.training.optimizers.optimizer_configs import ScheduleFreeConfig
from nmt.training.optimizers.schedule_free import ScheduleFree
from tests.training.objectives.test_objective import train

RATES = [0.1, 0.2, 0.3, 0.3, 0.3, 0.3]
LEFT_OUT = 4
"""An update that is left out."""


def noisy_gradient(weight: Tensor, step: int) -> Tensor:
    """Return the gradient of a bowl with some noise, the same in every call for a step."""
    return weight.detach() + torch.randn(weight.shape, generator=torch.Generator().manual_seed(step)).to(
        weight
    )


def by_the_paper(start: Tensor, decay: float) -> tuple[Tensor, Tensor]:
    """Return x and y of algorithm 1 of Defazio et al. 2024, with weights lr^2."""
    x = z = y = start.double()
    moment, total, count = torch.zeros_like(x), 0.0, 0
    for step, rate in enumerate(RATES, start=1):
        if step == LEFT_OUT:
            continue
        count, total = count + 1, total + rate**2
        gradient = noisy_gradient(y, step)
        moment = 0.98 * moment + 0.02 * gradient**2
        z = z - rate * gradient / ((moment / (1 - 0.98**count)).sqrt() + 1e-9) - rate * decay * y
        share = rate**2 / total
        x = (1 - share) * x + share * z
        y = 0.1 * z + 0.9 * x
    return x, y


def test_weights_and_their_average_are_those_of_the_paper() -> None:
    model = nn.Linear(7, 5, bias=False).double()
    expected = by_the_paper(model.weight.detach(), decay=0.1)
    optimizer = build_optimizer(ScheduleFreeConfig(weight_decay=0.1), model)
    assert isinstance(optimizer, ScheduleFree)
    averages = {"weight": torch.empty(5, 7, dtype=torch.float64)}
    average = MovingAverage(averages, dict(model.named_parameters()), 0.0)
    average.decay_at = optimizer.decay_of_average
    for step, rate in enumerate(RATES, start=1):
        optimizer.param_groups[0]["lr"] = rate
        model.weight.grad = noisy_gradient(model.weight, step)
        unusable = torch.tensor(float(step == LEFT_OUT))
        step_unless(optimizer, unusable)
        average.step(step, unusable)
    torch.testing.assert_close((averages["weight"], model.weight.detach()), expected, rtol=1e-9, atol=1e-9)
    assert not math.isclose(float(expected[0].norm()), float(expected[1].norm()), rel_tol=1e-4)


def test_numbers_that_the_host_reads_stay_on_the_host_after_a_resume() -> None:
    """On the meta device, where nothing can be read, as reading from a GPU makes the host wait."""
    model = nn.Linear(3, 2, device="meta")
    optimizer = build_optimizer(ScheduleFreeConfig(), model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    stored = optimizer_tensors(optimizer, model)
    load_optimizer_tensors(optimizer, model, stored)
    loaded = optimizer_tensors(optimizer, model)
    assert {name: x.device for name, x in loaded.items()} == {name: x.device for name, x in stored.items()}
    assert {x.device.type for x in loaded.values()} == {"cpu", "meta"}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()


def test_a_command_trains_saves_the_average_and_goes_on_bit_for_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["optimizer=schedule_free", "schedule=constant", "schedule.peak_rate=0.01"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(whole, *options)
    train(parts, *options, "trainer.max_steps=5")
    train(parts, *options)
    first, second = (CheckpointStore(run / "checkpoints").load(10) for run in (whole, parts))
    torch.testing.assert_close(second.model, first.model, rtol=0, atol=0)
    torch.testing.assert_close(second.optimizer, first.optimizer, rtol=0, atol=0)
    for name, y in first.optimizer.items():
        if name.startswith("trained/"):
            name = name.removeprefix("trained/")
            z = first.optimizer[f"{name}/iterate"]
            torch.testing.assert_close(0.9 * first.model[name] + 0.1 * z, y, rtol=1e-4, atol=1e-5)
    assert cli.main(["evaluate", f"run={whole}", "decoding.max_length_offset=5"]) == 0
    part = ["init.optimizer=keep", "init.checkpoint=last", "init.weights=[encoder.*]", "trainer.max_steps=12"]
    command = ["train", f"init={whole}", f"run={tmp_path / 'more'}", "data=toy", *options, *part]
    assert cli.main(command) == 2
    told = "optimizer=schedule_free averages all weights from the same update on, but"
    assert f"init.optimizer=keep: {told} {whole} has no state of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["schedule=cosine"], "averages the weights in place of a decay, but schedule=cosine has one; set"),
        (
            ["schedule=constant", "trainer.ema_decay=0.9"],
            "averages the weights itself, but trainer.ema_decay",
        ),
    ],
)
def test_a_second_average_and_a_decay_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "experiment=toy_en_fr", "optimizer=schedule_free", *options]) == 2
    assert f"optimizer=schedule_free {message}" in capsys.readouterr().err
