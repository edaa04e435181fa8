"""Losses, gradients and weights that are not finite, and losses that explode: what is done about them."""

from __future__ import annotations

import gc
import json
import math
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmt.config.roots import TrainConfig
from nmt.data.batches.batching import Batch, collate
from nmt.data.encoded_pairs import EncodedPairs
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.errors import TrainingStopped, UserError
from nmt.files import read_json
from nmt.models.base import TranslationModel
from nmt.runs.opened import initial_model
from nmt.runtime_config import Precision
from nmt.training.checkpoint import CheckpointStore
from nmt.training.objectives.configs import OBJECTIVES, CrossEntropyConfig
from nmt.training.objectives.objective import CrossEntropy, LossModule
from nmt.training.optimizers.schedule_configs import ConstantConfig, NoamConfig
from nmt.training.recovery import RolledBack, diverges, go_back, watched
from nmt.training.train_state import TrainState
from nmt.training.trainer import Trainer
from nmt.training.trainer_config import OnNonfinite
from tests.training.objectives.test_objective import Silent, Sums, train
from tests.training.test_checkpoint import crash_everywhere
from tests.training.test_trainer import Factory, assert_same, fit, killed_after


class Faulty(CrossEntropy):
    """Cross-entropy that is not finite in some steps, wherever the weights come from."""

    def __init__(self, *steps: int, factor: float = math.nan):
        super().__init__(CrossEntropyConfig(), Silent())
        self.steps, self.factor = steps, factor

    def __call__(self, module: LossModule, batch: Batch, step: int) -> Sums:
        loss, named = super().__call__(module, batch, step)
        return loss * self.factor if step in self.steps else loss, named


class FaultyFirst(Faulty):
    """Cross-entropy that is not finite the first time that it is computed."""

    def __call__(self, module: LossModule, batch: Batch, step: int) -> Sums:
        found = super().__call__(module, batch, step)
        self.steps = ()
        return found


class BadBatch(CrossEntropy):
    """Cross-entropy that is not finite for one batch, whenever it comes."""

    def __init__(self, tgt_out: Tensor):
        super().__init__(CrossEntropyConfig(), Silent())
        self.tgt_out = tgt_out

    def __call__(self, module: LossModule, batch: Batch, step: int) -> Sums:
        loss, named = super().__call__(module, batch, step)
        return loss * math.nan if torch.equal(batch.tgt_out, self.tgt_out) else loss, named


def metrics_of(trainer: Trainer) -> list[dict[str, Any]]:
    """Return the lines of metrics of the updates."""
    text = (trainer.store.directory.parent / "metrics.jsonl").read_text()
    lines = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    return [line for line in lines if "train/lr" in line]


def resumed(trainer: Trainer) -> Trainer:
    checkpoint = trainer.store.latest(pytest.fail)
    assert checkpoint is not None
    trainer.resume(checkpoint)
    return trainer


@pytest.mark.fault(20)
def test_a_fault_leaves_a_report(trainer: Factory, pairs: EncodedPairs) -> None:
    """Of weights that are not finite, found by the search in the update that was left out."""
    broken = trainer(max_steps=5, save_every_steps=1)
    broken.parallel_model.model.get_submodule("decoder.1").register_forward_hook(
        lambda module, inputs, output: output * math.inf if broken.train_state.step > 1 else None
    )
    with pytest.raises(
        TrainingStopped,
        match=r"^step 3: the loss is nan on rank 0, for the pairs \d+, \d+, \d+ and \d+ more of the training "
        r"data; the first output that is not finite is that of decoder.1. See .*/nonfinite_step_00000003.json"
        r". The weights were left as step 2 made them. The last checkpoint is that of step 2. Try a lower",
    ):
        fit(broken)
    file = broken.store.directory.parent / "nonfinite_step_00000003.json"
    report = json.loads(file.read_text(), parse_constant=pytest.fail)
    assert (report["step"], report["epoch"], report["loss"], report["weights"]) == (3, 1, "nan", [])
    assert (report["learning_rate"], report["pairs_of"]) == (1e-2, "the training data")
    assert {"src_embedding", "encoder.0", "encoder.1", "decoder.0", "decoder.1"} <= report[
        "grad_norms"
    ].keys()
    assert list(report["grad_norms"].values())[:2] == ["nan", "nan"]
    (rank,) = report["ranks"]
    (batch,) = rank["batches"]
    broken.train_state.batch = 0
    assert batch["pairs"] == broken.plan(pairs)[2].tolist()
    assert batch["loss"] == "nan"
    assert rank["modules"][0] == "decoder.1"
    store = broken.store.load(2)
    assert all(torch.equal(store.model[k], x) for k, x in broken.parallel_model.model.state_dict().items())


def test_a_fault_that_does_not_come_again(trainer: Factory) -> None:
    made = trainer(max_steps=5, objective=FaultyFirst(1))
    made.gradients.has_tried = True
    with pytest.raises(TrainingStopped, match=r"^step 1: the loss is nan; computed once more, all of it is"):
        fit(made)


@pytest.mark.fault(21)
@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_skip_leaves_out_exactly_that_update(
    trainer: Factory, capsys: pytest.CaptureFixture[str], factor: float
) -> None:
    """Weights and moments are those of a run whose optimizer does nothing in that step, with dropout."""
    made = {
        name: trainer(
            folder=name,
            max_steps=6,
            dropout=0.3,
            log_every_steps=6,
            objective=Faulty(3, factor=factor if name == "skip" else 1.0),
            on_nonfinite=OnNonfinite.skip,
        )
        for name in ("skip", "idle")
    }
    idle = made["idle"].amp_step
    do_step = idle.step
    idle.step = lambda learning_rate, unusable: do_step(  # type: ignore[method-assign]
        learning_rate, torch.full_like(unusable, made["idle"].train_state.step == 2)
    )
    train_states = {name: fit(one) for name, one in made.items()}
    tensors = [one.parallel_model.tensors(one.amp_step.optimizer) for one in made.values()]
    torch.testing.assert_close(*tensors, rtol=0, atol=0)
    assert [state.skips for state in train_states.values()] == [1, 0]
    assert train_states["skip"].batch == train_states["idle"].batch  # no other data
    (line,) = metrics_of(made["skip"])
    assert line["train/skips"] == 1
    assert 0 < line["train/loss"] < 5
    assert all(0 < line[f"train/padding_{side}"] < 0.5 for side in ("src", "tgt"))
    assert f"step 3: the loss is {factor}; the update is left out (1 so far)" in capsys.readouterr().err


@pytest.mark.fault(21)
def test_too_many_skips_in_a_row_stop(trainer: Factory) -> None:
    fields: dict[str, Any] = {"on_nonfinite": OnNonfinite.skip, "max_recoveries": 2, "save_every_steps": 1}
    several = fit(trainer(folder="several", max_steps=8, objective=Faulty(2, 3, 5, 6), **fields))
    assert (several.step, several.skips, several.skips_in_a_row) == (8, 4, 0)
    made = trainer(max_steps=8, objective=Faulty(2, 4, 5, 6), **fields)
    with pytest.raises(
        TrainingStopped, match=r"^step 6: the loss is nan, and 2 updates before it were left out on rank 0"
    ):
        fit(made)
    assert made.store.steps()[-1] == 5
    again = resumed(trainer(max_steps=8, objective=Faulty(6), **fields))  # the row goes on
    assert again.train_state.skips_in_a_row == 2
    with pytest.raises(TrainingStopped, match=r"^step 6"):
        fit(again)


@pytest.mark.fault(21)
@pytest.mark.parametrize(
    ("changed", "error"),
    [({"on_nonfinite": OnNonfinite.rollback}, RolledBack), ({"max_recoveries": 1}, TrainingStopped)],
)
def test_a_run_that_has_left_out_updates_goes_on_by_another_rule(
    trainer: Factory, changed: dict[str, Any], error: type[TrainingStopped]
) -> None:
    """The newest checkpoint is that of the second update in a row, one more than is tolerated now."""
    fields: dict[str, Any] = {"on_nonfinite": OnNonfinite.skip, "max_recoveries": 2, "save_every_steps": 1}
    with pytest.raises(TrainingStopped, match=r"^step 6"):
        fit(trainer(max_steps=8, objective=Faulty(4, 5, 6), **fields))
    again = resumed(trainer(folder="run", max_steps=8, objective=Faulty(6), **fields | changed))
    assert again.train_state.skips_in_a_row == 2
    with pytest.raises(error, match=r"^step 6: the loss is nan"):
        fit(again)
    assert fit(resumed(trainer(max_steps=8, **fields | changed))).step == 8


@pytest.mark.fault(12, 20)
def test_a_report_that_cannot_be_written_stops_no_return(
    trainer: Factory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, content: object) -> None:
        raise TrainingStopped(f"cannot write {path.name}: the disk is full")

    monkeypatch.setattr("nmt.training.trainer.write_json", full)
    rollback = {"on_nonfinite": OnNonfinite.rollback, "save_every_steps": 2}
    with pytest.raises(
        RolledBack, match=r"^step 4: the loss is nan on rank 0.* Going back to step 2"
    ) as told:
        fit(trainer(max_steps=5, objective=Faulty(4), **rollback))
    assert "See" not in str(told.value)
    lost = "cannot write nonfinite_step_00000004.json: the disk is full; the report of step 4 is lost"
    assert lost in capsys.readouterr().err


@pytest.mark.fault(20)
@pytest.mark.parametrize(("bad", "place"), [(5, (1, 6)), (8, (2, 0))])
def test_rollback_drops_no_data_of_updates_that_were_not_read(
    trainer: Factory, pairs: EncodedPairs, bad: int, place: tuple[int, int]
) -> None:
    """The host of a GPU learns of a fault later: here updates follow, of the next epoch perhaps."""
    fields: dict[str, Any] = {"batch_tokens": 35, "log_every_steps": 4, "save_every_steps": 4}  # nine batches
    tgt_out = collate(pairs, trainer(folder="plan", **fields).plan(pairs)[bad]).tgt_out
    made = trainer(objective=BadBatch(tgt_out), on_nonfinite=OnNonfinite.rollback, max_steps=20, **fields)
    report = made._report
    made._report = lambda tracker: None if made.train_state.step % 4 else report(tracker)  # type: ignore[method-assign]
    with pytest.raises(RolledBack, match=f"^step {bad + 1}: the loss is nan"):
        fit(made)
    again = resumed(trainer(**fields))
    assert again.train_state.step == bad // 4 * 4
    assert (again.train_state.epoch, again.train_state.batch) == place
    file = made.store.directory.parent / f"nonfinite_step_{bad + 1:08d}.json"
    assert read_json(file)["epoch"] == 1


@pytest.mark.fault(20)
@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_rollback_goes_on_behind_the_fault(trainer: Factory, pairs: EncodedPairs, ema_decay: float) -> None:
    """From the weights of step 4, with the data behind that of step 6; an interruption changes nothing."""

    def build(folder: str = "run") -> Trainer:
        rollback = {"on_nonfinite": OnNonfinite.rollback, "max_recoveries": 1, "ema_decay": ema_decay, **size}
        return trainer(folder=folder, max_steps=7, save_every_steps=2, objective=BadBatch(bad), **rollback)

    def all_weights(made: Trainer) -> Tensor:
        both = made.parallel_model.model, made.parallel_model.trained  # the average, and what it follows
        return torch.cat([x.detach().flatten() for model in both for x in model.parameters()])

    size = {"batch_tokens": 35}  # nine batches an epoch
    plan = trainer(folder="plan", **size).plan(pairs)
    bad = collate(pairs, plan[5]).tgt_out
    first = build()
    with pytest.raises(RolledBack, match=r"^step 6: the loss is nan .*\. Going back to step 4"):
        fit(first)
    assert first.store.steps() == [2, 4]
    second = resumed(build())
    assert (second.train_state.step, second.train_state.batch, second.train_state.rollbacks) == (4, 6, 1)
    assert second.train_state.seconds == first.train_state.seconds  # those of steps 5 and 6 were spent
    trained_on = plan[:4] + plan[6:9]
    straight = build(folder="straight")
    straight.gradients.has_tried = True
    for group in trained_on:
        straight._update(pairs, [group])
    assert fit(second).step == 7
    assert torch.equal(all_weights(second), all_weights(straight))
    interrupted = build(folder="interrupted")
    for group in plan[:5]:
        interrupted._update(pairs, [group])
        interrupted._move_on(1, len(plan))
        if interrupted.train_state.step in (2, 4, 5):  # step 5 is no regular one
            interrupted.save()
    with pytest.raises(RolledBack):
        fit(resumed(build(folder="interrupted")))
    last = resumed(build(folder="interrupted"))
    fit(last)
    assert torch.equal(all_weights(last), all_weights(straight))


@pytest.mark.fault(2, 20)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_crash_at_any_call_of_a_rollback_leaves_the_checkpoint_to_go_back_to(tmp_path: Path) -> None:
    """It is the newest, or a later one is as long as the return is not counted."""
    seen = set()

    def check(store: CheckpointStore) -> None:
        rollbacks = TrainState.stored_in(store.load(10).state).rollbacks
        newest = store.latest(pytest.fail)
        assert newest is not None
        assert newest.step == 10 or (newest.step == 20 and not rollbacks)
        seen.add(rollbacks)

    assert crash_everywhere(tmp_path, lambda store: go_back(store, 10, TrainState(step=25)), check) > 40
    assert seen == {0, 1}


@pytest.mark.fault(20)
def test_rollback_ends(trainer: Factory) -> None:
    made = trainer(
        max_steps=9,
        save_every_steps=2,
        objective=Faulty(5),
        on_nonfinite=OnNonfinite.rollback,
        max_recoveries=2,
    )
    for _ in range(2):
        with pytest.raises(RolledBack):
            fit(made)
        resumed(made)
    assert made.train_state.rollbacks == 2
    with pytest.raises(
        TrainingStopped, match=r"^step 5: the loss is nan.*The last checkpoint is that of step 4"
    ):
        fit(made)
    fresh = trainer(folder="fresh", objective=Faulty(1), on_nonfinite=OnNonfinite.rollback)
    told = (
        r"There is no checkpoint\. .* or trainer\.on_nonfinite=skip, or trainer\.save_every_steps such that"
    )
    with pytest.raises(TrainingStopped, match=told):
        fit(fresh)


@pytest.mark.fault(20)
@pytest.mark.parametrize("due", ["save_every_steps", "eval_every_steps"])
def test_weights_that_are_not_finite_are_neither_scored_nor_saved(trainer: Factory, due: str) -> None:
    rates = ConstantConfig(peak_rate=1e38, warmup_steps=0)
    made = trainer(schedule=rates, max_steps=4, **{due: 1})
    with pytest.raises(TrainingStopped, match=r"^step 1: weights are not finite after the update\. "):
        fit(made)
    assert made.store.steps() == []
    assert not made.train_state.scores


@pytest.mark.fault(20)
def test_a_loss_that_explodes_stops(trainer: Factory) -> None:
    """Three lines of metrics after the first update; a resumed run stops where the first one did."""
    fields: dict[str, Any] = {"schedule": ConstantConfig(peak_rate=10.0, warmup_steps=0), "max_steps": 30}
    with pytest.raises(
        TrainingStopped,
        match=r"^step \d+: the loss explodes\. The last ones logged are .* nats per target token, more than "
        r"trainer.divergence_ratio=5 times the 4.\d+ of a model that knows nothing\. There is no checkpoint",
    ) as stopped:
        fit(trainer(folder="straight", **fields))
    interrupted = trainer(**fields | {"max_steps": 2})
    fit(interrupted)
    with pytest.raises(TrainingStopped) as stopped_again:
        fit(resumed(trainer(**fields)))
    texts = [str(error.value).partition("There is")[0] for error in (stopped, stopped_again)]
    assert texts[0] == texts[1].partition("The last checkpoint")[0]
    assert fit(trainer(folder="regardless", divergence_ratio=0.0, **fields)).step == 30


def test_what_explodes_and_what_does_not() -> None:
    """Healthy is the loss of a uniform guess, or of the first update where that is higher."""
    assert diverges([60.0, 51.0, 9.0], 5.0, 10.0)
    for losses in ([60.0, 51.0], [60.0, 49.0, 49.0], [1e9, 9.0, 9.0]):
        assert not diverges(losses, 5.0, 10.0)
    assert not diverges([1e9] * 3, 0.0, 10.0)


@pytest.mark.fault(7)
def test_a_training_in_fp16_goes_on_exactly(trainer: Factory) -> None:
    """Weights, moments, loss scale and learning rates, over an overflow after the kill.

    The best score is that of step 2; two of the three validations that end the patience follow the kill.
    """
    fields: dict[str, Any] = {"precision": Precision.fp16, "dropout": 0.3, "max_steps": 100, "patience": 3}
    fields |= {"schedule": NoamConfig(factor=0.1, warmup_steps=4), "eval_every_steps": 2}
    fields |= {"save_every_steps": 1}
    scores = {2: 5.0, 4: 4.0, 6: 4.5, 8: 1.0}

    def overflowing(folder: str) -> Trainer:
        made = trainer(folder=folder, objective=Faulty(6, factor=1e30), **fields)
        made.amp_step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        made.validate = lambda step: {"valid/bleu": scores[step], "valid/loss": 9.0 - scores[step]}
        return made

    straight = overflowing("straight")
    assert fit(straight).step == 8
    killed_after(5, overflowing("run"))
    second = resumed(overflowing("run"))
    assert (second.train_state.step, second.train_state.validations_without_gain) == (5, 1)
    assert fit(second).best_steps()[0] == 2
    assert straight.amp_step.scaler.state_dict() == second.amp_step.scaler.state_dict()
    assert_same(second, straight)
    lines = [metrics_of(made) for made in (straight, second)]
    rates, scales = (
        [[line[f"train/{name}"] for line in of_run] for of_run in lines] for name in ("lr", "loss_scale")
    )
    assert rates[0] == rates[1]
    assert scales[0] == scales[1]
    assert scales[0] == [2.0**exponent for exponent in (10, 11, 11, 12, 12, 11, 11, 12)]


@pytest.mark.parametrize(
    "damaged",
    [lambda stored: [2.0], lambda stored: {"scale": 2.0}, lambda stored: stored | {"scale": "much"}],
)
def test_a_loss_scale_that_is_none_is_refused(
    trainer: Factory, damaged: Callable[[dict[str, Any]], object]
) -> None:
    made = trainer(precision=Precision.fp16, max_steps=1)
    made.amp_step.scaler = torch.amp.GradScaler("cpu")
    fit(made)
    checkpoint = made.store.load(1)
    checkpoint.state["scaler"] = damaged(checkpoint.state["scaler"])
    with pytest.raises(UserError, match=r"^state.json of the checkpoint has no loss scale of this"):
        made.resume(checkpoint)


@pytest.mark.fault(20)
def test_a_command_rolls_back_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One `nmt train`: each step is once in the metrics, the returns are counted, one model is in memory."""
    calls: list[int] = []
    models: list[weakref.ref[TranslationModel]] = []

    def build(cfg: TrainConfig, tokenizer: Tokenizer) -> TranslationModel:
        assert [model() for model in models] == [None] * len(models)
        model = initial_model(cfg, tokenizer)
        models.append(weakref.ref(model))
        return model

    class FaultyOnce(Faulty):
        def __call__(self, module: LossModule, batch: Batch, step: int) -> Sums:
            calls.append(step)
            self.steps = (7,) if calls.count(7) < 3 else ()  # in the update and in the search
            return super().__call__(module, batch, step)

    monkeypatch.setitem(
        OBJECTIVES, "cross_entropy", (CrossEntropyConfig, lambda cfg, open_model: FaultyOnce())
    )
    options = ["trainer.save_every_steps=3", "trainer.log_every_steps=1", "trainer.on_nonfinite=rollback"]
    run = tmp_path / "run"
    monkeypatch.setattr("nmt.runs.train.initial_model", build)
    gc.disable()
    try:
        lines = train(run, *options)
    finally:
        gc.enable()
    assert len(models) == 2
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert [line.get("train/rollbacks") for line in lines] == [None] * 6 + [1] * 4
    assert read_json(run / "nonfinite_step_00000007.json")["loss"] == "nan"


def test_a_compiled_model_tells_which_of_its_modules_is_not_finite() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    compiled = torch.compile(lambda x: model(x), backend="eager")
    compiled(torch.ones(1, 2))
    nn.init.constant_(model[1].get_parameter("weight"), torch.nan)
    with watched(model) as found:
        compiled(torch.ones(1, 2))
    assert found == ["1", "2", "model"]
