"""Values that change in the course of a training: the batches of an update, dropout, the learning rate."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from nmt.data.batches.batching import dealt, largest_share
from nmt.distributed import World
from nmt.errors import UserError
from nmt.kernels import fused
from nmt.layers.blocks import Dropout
from nmt.models.base import TranslationModel
from nmt.training.adapting.configs import LoraConfig
from nmt.training.adapting.lora import Lora
from nmt.training.dropout_rates import DropoutRates
from nmt.training.trainer import Trainer
from nmt.training.trainer_config import TrainerConfig
from tests.training.test_trainer import fit, resumed, weights

CHANGES: dict[str, Any] = {
    "changes": [
        {"step": 3, "accumulate": 2},
        {"step": 4, "dropout_factor": 0.5},
        {"step": 6, "accumulate": 3, "dropout_factor": 0.0, "rate_factor": 0.1},
    ]
}


def test_values_are_those_of_the_last_change() -> None:
    cfg = TrainerConfig(accumulate=5, **CHANGES)
    assert [cfg.accumulate_at(step) for step in range(1, 8)] == [5, 5, 2, 2, 2, 3, 3]
    assert [cfg.dropout_factor_at(step) for step in range(1, 8)] == [1, 1, 1, 0.5, 0.5, 0, 0]
    assert [cfg.rate_factor_at(step) for step in range(1, 8)] == [1, 1, 1, 1, 1, 0.1, 0.1]
    assert [cfg.num_updates(batches) for batches in (0, 1, 5, 6, 16, 17, 20)] == [0, 1, 1, 2, 5, 6, 7]


def test_a_training_takes_the_batches_and_rates_of_each_update(
    trainer: Callable[..., Trainer], capsys: pytest.CaptureFixture[str]
) -> None:
    made = trainer(dropout=0.3, max_steps=7, **CHANGES)
    found = []
    update, step_of_weights = made._update, made.amp_step.step
    learning_rates, usual = list[float](), trainer(folder="usual", max_steps=7)

    def watched_rate(learning_rate: float, unusable: Any) -> None:
        learning_rates.append(learning_rate)
        step_of_weights(learning_rate, unusable)

    def watched(pairs: Any, group: Any) -> None:
        update(pairs, group)
        rates = {
            module.rate for module in made.parallel_model.trained.modules() if isinstance(module, Dropout)
        }
        found.append((made.train_state.step, len(group), made.gradients.accumulate, max(rates)))

    made._update = watched  # type: ignore[method-assign]
    made.amp_step.step = watched_rate  # type: ignore[method-assign]
    fit(made)
    factors = [1.0, 1.0, 1.0, 1.0, 1.0, 0.1, 0.1]
    assert learning_rates == [f * usual.learning_rate(step) for step, f in enumerate(factors, 1)]
    batches = len(made.plan(made.epochs.pairs_of_epoch(1, 0).part(0)))
    assert batches == 8  # 1 + 1 + 2 + 2 + 2, then an epoch from the sixth update on
    assert found == [
        (1, 1, 1, 0.3),
        (2, 1, 1, 0.3),
        (3, 2, 2, 0.3),
        (4, 2, 2, 0.15),
        (5, 2, 2, 0.15),
        (6, 3, 3, 0.0),
        (7, 3, 3, 0.0),
    ]
    assert [line for line in capsys.readouterr().err.splitlines() if "from here on" in line] == [
        f"step {step}: from here on with {values} (trainer.changes)"
        for step, values in (
            (3, "accumulate=2"),
            (4, "dropout_factor=0.5"),
            (6, "accumulate=3 and dropout_factor=0.0 and rate_factor=0.1"),
        )
    ]


def test_resumed_is_uninterrupted(trainer: Callable[..., Trainer]) -> None:
    """Also where a run goes on right at a change that it did not know of, and in the middle of an epoch."""
    straight = trainer(folder="straight", dropout=0.3, max_steps=7, **CHANGES)
    fit(straight)
    for limit, known in ((2, 0), (4, 2), (7, 3)):
        again = resumed(trainer(dropout=0.3, max_steps=limit, changes=CHANGES["changes"][:known]))
        fit(again)
    assert torch.equal(weights(again), weights(straight))


def test_batches_are_tried_as_they_are_dealt(trainer: Callable[..., Trainer]) -> None:
    """Once, also where a run goes on, as in the update of the largest shares to come: here all are whole."""
    tried = list[tuple[int, int]]()

    def watched(made: Trainer) -> Trainer:
        try_largest = made.gradients.try_largest

        def watched(pairs: Any, plan: Any, step: int) -> None:
            tried.append((step, made.gradients.accumulate))
            try_largest(pairs, plan, step)

        made.gradients.try_largest = watched  # type: ignore[method-assign]
        return made

    changes = [{"step": 3, "accumulate": 4}, {"step": 6, "accumulate": 2}]
    fit(watched(trainer(max_steps=4, changes=changes)))
    again = watched(resumed(trainer(max_steps=7, changes=changes)))
    fit(again)
    assert tried == [(1, 1), (5, 4)]


def test_the_largest_share_is_that_of_the_updates_to_come() -> None:
    """Among several processes it is not that of most batches."""
    for size in (1, 2, 4, 8):
        for accumulate in (1, 2, 3, 4, 5, 6, 9):
            one = np.arange(8 * 3)
            parts = [dealt([one] * accumulate, accumulate, rank, size) for rank in range(size)]
            largest = max(len(part) for own in parts for part in own)
            assert largest == len(one) * largest_share(accumulate, size)
    changes = [{"step": 3, "accumulate": 3}, {"step": 5, "rate_factor": 0.5}, {"step": 9, "accumulate": 4}]
    cfg = TrainerConfig(accumulate=2, max_steps=8, changes=changes)
    assert [cfg.accumulated_from(step) for step in (1, 2, 3, 8)] == [[2, 3], [2, 3], [3], [3]]
    assert dataclasses.replace(cfg, max_steps=None, max_epochs=1).accumulated_from(3) == [3, 4]
    dealt_to: list[int] = []
    made = SimpleNamespace(cfg=cfg, world=World(rank=0, size=4), _deal=dealt_to.append)
    Trainer._deal_largest(cast(Trainer, made), 1)
    Trainer._deal_largest(cast(Trainer, made), 3)
    assert dealt_to == [2, 3]


def test_a_run_of_an_earlier_version_deals_rows_whatever_changes(trainer: Callable[..., Trainer]) -> None:
    fit(trainer(max_steps=2, **CHANGES))
    made = trainer(max_steps=4, **CHANGES)
    checkpoint = made.store.load(2)
    del checkpoint.state["progress"]["sorts_by_target"]
    made.resume(checkpoint)
    assert fit(made).step == 4
    assert made.gradients.accumulate == 1


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_kernels_and_compiled_code_see_the_rate(
    tiny_model: Callable[..., TranslationModel], compiled: bool
) -> None:
    model = tiny_model(dropout=0.5).train()
    rates = DropoutRates(TrainerConfig(**CHANGES), model)
    module = next(module for module in model.modules() if isinstance(module, Dropout))
    call: Callable[[torch.Tensor], torch.Tensor] = (
        torch.compile(module, backend="eager", fullgraph=False) if compiled else module
    )
    x = torch.ones(100, 100)
    for step, rate in ((1, 0.5), (4, 0.25), (6, 0.0)):
        rates.follow(step)
        assert float((call(x) == 0).float().mean()) == pytest.approx(rate, abs=0.03)
        summed = fused.add_dropout(torch.zeros_like(x), x, module.current_rate)
        assert float((summed == 0).float().mean()) == pytest.approx(rate, abs=0.03)


def test_the_dropout_of_lora_follows(tiny_model: Callable[..., TranslationModel]) -> None:
    model = tiny_model(dropout=0.2).train()
    Lora(LoraConfig(dropout=0.4)).insert(model)
    follower = DropoutRates(TrainerConfig(**CHANGES), model)
    rates = {name: one.rate for name, one in model.named_modules() if isinstance(one, Dropout)}
    follower.follow(4)
    halved = {name: one.rate for name, one in model.named_modules() if isinstance(one, Dropout)}
    assert halved == {name: rate / 2 for name, rate in rates.items()}
    assert {0.4, 0.2} <= set(rates.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            [{"dropout_factor": 0.1}],
            "trainer.changes[0] must be a change such as {step: 1000, dropout_factor: ",
        ),
        ([{"step": 9}], "trainer.changes[0] must be a change such as "),
        (
            [{"step": 9, "dropout": 0.1}],
            "unknown key trainer.changes[0].dropout; did you mean 'dropout_factor'?",
        ),
        (
            [{"step": 1, "accumulate": 2}],
            "trainer.changes[0].step must be a whole number of at least 2, but is 1",
        ),
        (
            [{"step": 9, "accumulate": 1.5}],
            "changes[0].accumulate must be a whole number of at least 1, but is 1.5",
        ),
        (
            [{"step": 9, "accumulate": 2}, {"step": 9, "dropout_factor": 1}],
            "trainer.changes must be in ascending order of their steps, but these are [9, 9]",
        ),
    ],
)
def test_a_change_that_cannot_be_is_refused(changes: list[Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        TrainerConfig(changes=changes)


def test_a_rate_of_one_is_refused(tiny_model: Callable[..., TranslationModel]) -> None:
    cfg = TrainerConfig(changes=[{"step": 2, "dropout_factor": 2.0}])
    with pytest.raises(
        UserError,
        match=r"trainer\.changes\[0\]\.dropout_factor must be below 2, because the model has a dropout rate "
        r"of 0\.5, but is 2",
    ):
        DropoutRates(cfg, tiny_model(dropout=0.5))
