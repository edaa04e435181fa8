"""The moving average of the weights: what it is, who sees it, and that nothing on the way disturbs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt import cli
from nmt.data.encoded_pairs import EncodedPairs
from nmt.errors import UserError
from nmt.runtime_config import Precision
from nmt.training import gradients
from nmt.training.objectives import build_objective
from nmt.training.objectives.configs import SimCutConfig, Teacher
from nmt.training.objectives.objective import Objective
from nmt.training.optimizers.ema import MovingAverage, decay_at
from nmt.training.trainer import Trainer
from nmt.training.trainer_config import OnNonfinite
from tests.training.objectives.test_objective import Silent, cross_entropy, train
from tests.training.test_memory import Small
from tests.training.test_recovery import Faulty, resumed
from tests.training.test_trainer import Factory, fit, weights

ZERO = torch.zeros(())


def taught() -> Objective:
    """Return an objective with the average as its teacher, the same however a batch is cut."""
    return build_objective(SimCutConfig(cut=0.0, teacher=Teacher.ema), Silent())


def trained(trainer: Trainer) -> Tensor:
    """Return the weights that the optimizer updates."""
    return torch.cat([x.detach().flatten() for x in trainer.parallel_model.trained.parameters()])


def tensors(trainer: Trainer) -> list[dict[str, Tensor]]:
    """Return copies of all that a checkpoint holds."""
    found = trainer.parallel_model.tensors(trainer.amp_step.optimizer)
    return [{name: x.clone() for name, x in of_kind.items()} for of_kind in found]


def test_the_decay_rises() -> None:
    assert [decay_at(step, 0.5) for step in (1, 4, 8, 1000)] == [2 / 11, 5 / 14, 0.5, 0.5]


def test_the_average_is_that_of_the_formula() -> None:
    x, y = torch.randn(3, 5), torch.randn(7)
    average = MovingAverage({"x": torch.empty(3, 5), "y": torch.empty(7)}, {"x": x, "y": y}, 0.4)
    assert torch.equal(average.tensors["x"], x)
    expected = {"x": x.double(), "y": y.double()}
    for step in range(1, 9):
        for weight in (x, y):
            weight += torch.randn(weight.shape)
        average.step(step, ZERO)
        decay = min(0.4, (1 + step) / (10 + step))
        expected = {
            "x": decay * expected["x"] + (1 - decay) * x,
            "y": decay * expected["y"] + (1 - decay) * y,
        }
    for name, tensor in average.tensors.items():
        torch.testing.assert_close(tensor, expected[name].float())
    before = average.tensors["x"].clone()
    average.step(9, torch.ones(()))
    assert torch.equal(average.tensors["x"], before)


def test_validation_and_checkpoints_have_the_average_and_the_training_the_weights(trainer: Factory) -> None:
    """The weights in training are those of a run without an average, bit for bit."""
    fields: dict[str, Any] = {"max_steps": 6, "eval_every_steps": 3, "save_every_steps": 3, "dropout": 0.3}
    plain, made = trainer(folder="plain", **fields), trainer(ema_decay=0.9, **fields)
    assert torch.equal(weights(made), trained(made))
    expected, validated = weights(made), {}
    do_step = made.parallel_model.average.step  # type: ignore[union-attr]

    def step(number: int, unusable: Tensor) -> None:
        nonlocal expected
        do_step(number, unusable)
        expected = expected.lerp(trained(made), 1 - decay_at(number, 0.9))

    def validate(number: int) -> dict[str, float]:
        validated[number] = weights(made), expected
        return {"valid/bleu": 0.0, "valid/loss": 0.0}

    made.parallel_model.average.step = step  # type: ignore[method-assign, union-attr]
    made.validate = validate
    fit(plain)
    fit(made)
    assert list(validated) == [3, 6]
    for found, reference in validated.values():
        torch.testing.assert_close(found, reference)
    assert torch.equal(trained(made), weights(plain))
    assert (weights(made) - trained(made)).abs().max() > 1e-3
    stored = made.store.load(6)
    model = made.parallel_model.model.state_dict()
    assert all(torch.equal(stored.model[name], x) for name, x in model.items())
    raw = dict(made.parallel_model.trained.named_parameters())
    assert all(torch.equal(stored.optimizer[f"trained/{name}"], x) for name, x in raw.items())


@pytest.mark.fault(1)
@pytest.mark.parametrize("objective", [cross_entropy, taught])
def test_a_resumed_training_is_the_uninterrupted_one(
    trainer: Factory, objective: Callable[[], Objective]
) -> None:
    def build(folder: str, max_steps: int) -> Trainer:
        fields: dict[str, Any] = {"ema_decay": 0.9, "dropout": 0.3, "max_steps": max_steps}
        return trainer(folder=folder, objective=objective(), **fields)

    straight = build("straight", 7)
    fit(straight)
    fit(build("run", 4))
    again = resumed(build("run", 7))
    fit(again)
    torch.testing.assert_close(tensors(again), tensors(straight), rtol=0, atol=0)


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.9), (0.9, 0.0)])
def test_a_checkpoint_with_or_without_the_weights_beside_their_average(
    trainer: Factory, before: float, after: float
) -> None:
    fit(trainer(ema_decay=before, max_steps=2))
    made = trainer(ema_decay=after, max_steps=4)
    untouched = tensors(made)
    with pytest.raises(UserError, match="the weights beside their moving average in the checkpoint do not"):
        resumed(made)
    torch.testing.assert_close(tensors(made), untouched, rtol=0, atol=0)


@pytest.mark.fault(21)
@pytest.mark.parametrize(("precision", "factor"), [(Precision.fp32, float("nan")), (Precision.fp16, 1e30)])
def test_an_update_that_is_left_out_leaves_the_average_alone(
    trainer: Factory, pairs: EncodedPairs, precision: Precision, factor: float
) -> None:
    """Skipped, or an overflow of fp16."""
    made = trainer(
        ema_decay=0.9,
        objective=Faulty(3, factor=factor),
        on_nonfinite=OnNonfinite.skip,
        precision=precision,
    )
    made.amp_step.scaler = torch.amp.GradScaler("cpu", 2.0**10, enabled=precision is Precision.fp16)
    seen = []
    for batch in made.plan(pairs)[:4]:
        made._update(pairs, [batch])
        seen.append(weights(made))
    assert torch.equal(seen[1], seen[2])
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[2], seen[3])


def test_parts_and_small_batches_are_one_batch(trainer: Factory, pairs: EncodedPairs) -> None:
    """Also of an update after the average and the weights have parted."""
    groups = {"one": [np.arange(13)], "several": [np.arange(3), np.arange(3, 4), np.arange(4, 13)]}
    found = {}
    for name, group in {**groups, "parts": groups["one"]}.items():
        objective = Small(taught(), 4) if name == "parts" else taught()
        made = trainer(folder=name, objective=objective, ema_decay=0.9)
        for step in (1, 2):
            made._update(pairs, [np.arange(20, 24)] if step == 1 else group)
        made._read()
        state = tensors(made)[1]
        moments = {key: x for key, x in state.items() if "/exp_avg" in key}
        found[name] = moments, made.train_state.window["kl"]
    for name in ("several", "parts"):
        torch.testing.assert_close(found[name][0], found["one"][0], rtol=1e-3, atol=1e-6)
        assert found[name][1] == pytest.approx(found["one"][1], rel=1e-4)


def test_trials_of_batches_leave_the_average_alone(
    trainer: Factory, pairs: EncodedPairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "TIMED_SECONDS", 0)
    made = trainer(objective=taught(), batch_tokens="auto", auto_batch_tokens=16, ema_decay=0.9)
    before = weights(made)
    made.find_batch_tokens(lambda text: None)
    made.gradients.try_largest(pairs, made.plan(pairs), 1)
    assert torch.equal(weights(made), before)


def test_a_command_with_an_average(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its checkpoints are opened like any other; the average of some is one of averages."""
    run = tmp_path / "run"
    options = ["trainer.ema_decay=0.9", "trainer.average=2", "trainer.save_every_steps=5"]
    train(run, *options, "trainer.eval_every_steps=5")
    capsys.readouterr()
    assert cli.main(["evaluate", f"run={run}", "decoding.max_length_offset=5", "checkpoint=last"]) == 0
    assert "perplexity" in capsys.readouterr().out
    assert cli.main(["train", "experiment=toy_en_fr", f"run={run}", "trainer.ema_decay=0.8"]) == 2
    assert "trainer.ema_decay: 0.9 -> 0.8" in capsys.readouterr().err
    assert cli.main(["train", "trainer.ema_decay=1"]) == 2
    assert "trainer.ema_decay must be in [0, 1), but is 1.0" in capsys.readouterr().err
