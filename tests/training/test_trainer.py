"""The update, the limits, and what is validated, kept and stopped, on a model of a few thousand weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nmt.data.encoded_pairs import EncodedPairs
from nmt.errors import TrainingStopped, UserError
from nmt.models import TranslationModel
from nmt.runtime import MixedPrecisionStep, Precision, StopRequest, seed_everything
from nmt.training.checkpoint import CheckpointStore
from nmt.training.optimizer import (
    ConstantConfig,
    OptimizerConfig,
    PlateauConfig,
    ScheduleContext,
    build_optimizer,
    optimizer_tensors,
)
from nmt.training.parallel_model import ParallelModel
from nmt.training.tracking import TrackedRun, Tracker, TrackingConfig
from nmt.training.train_state import TrainState
from nmt.training.trainer import AverageOf, Trainer, TrainerConfig, regular_steps

Factory = Callable[..., Trainer]
RATE = ConstantConfig(peak_rate=1e-2, warmup_steps=0)


@pytest.fixture
def trainer(tmp_path: Path, pairs: EncodedPairs, tiny_model: Callable[..., TranslationModel]) -> Factory:
    """A function of trainer fields that returns a trainer; `scores` are what the validations give."""

    def build(
        *, scores: Sequence[float] = (), optimizer: OptimizerConfig = RATE, folder: str = "run", **fields: Any
    ) -> Trainer:
        plain: dict[str, Any] = {"batch_tokens": 40, "log_every_steps": 1, "patience": 0}
        cfg = TrainerConfig(**(plain | {"best_metric": "bleu"} | fields))
        seed_everything(1)
        model = tiny_model()
        found: Iterator[float] = iter(scores)

        def validate(step: int) -> dict[str, float]:
            score = next(found, 0.0)
            return {"valid/bleu": score, "valid/loss": 100.0 - score}

        return Trainer(
            cfg,
            optimizer,
            ScheduleContext(d_model=16),
            parallel_model=ParallelModel(model),
            amp_step=MixedPrecisionStep(
                build_optimizer(optimizer, model),
                device=torch.device("cpu"),
                precision=Precision.fp32,
                clip_norm=1.0,
            ),
            pairs_of_epoch=lambda epoch: pairs,
            validate=validate,
            store=CheckpointStore(tmp_path / folder / "checkpoints"),
            seed=1,
            higher_is_better=cfg.best_metric == "bleu",
        )

    return build


def fit(trainer: Trainer) -> TrainState:
    run = TrackedRun(trainer.store.directory.parent, trainer.train_state.step)
    with Tracker(run, TrackingConfig()) as tracker:
        return trainer.fit(tracker, StopRequest())


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat(
        [parameter.detach().flatten() for parameter in trainer.parallel_model.model.parameters()]
    )


def test_small_batches_together_are_one_large_batch(trainer: Factory, pairs: EncodedPairs) -> None:
    """Of different sizes and lengths: each target token counts the same."""
    one, several = trainer(folder="one"), trainer(folder="several")
    one._update(pairs, [np.arange(13)])
    several._update(pairs, [np.arange(3), np.arange(3, 4), np.arange(4, 13)])
    for made in (one, several):
        made._read()
    assert one.train_state.tokens == several.train_state.tokens == int(pairs.tgt_lengths[:13].sum())
    assert several.train_state.window["positions"] < one.train_state.window["positions"]  # less padding
    assert one.train_state.window["loss"] == pytest.approx(several.train_state.window["loss"], rel=1e-5)
    moments = [
        optimizer_tensors(made.amp_step.optimizer, made.parallel_model.model) for made in (one, several)
    ]
    torch.testing.assert_close(*moments, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_an_epoch_uses_every_token_once(trainer: Factory, pairs: EncodedPairs, accumulate: int) -> None:
    train_state = fit(trainer(max_steps=None, max_epochs=2, accumulate=accumulate))
    assert train_state.tokens == 2 * int(pairs.tgt_lengths.sum())
    assert (train_state.epoch, train_state.batch) == (3, 0)


def test_the_first_limit_ends_the_training(trainer: Factory) -> None:
    assert fit(trainer(max_steps=5, max_epochs=100)).step == 5
    train_state = fit(trainer(folder="tokens", max_steps=100, max_tokens=100))
    assert 100 <= train_state.tokens < 200


def test_the_last_step_is_validated_and_saved(trainer: Factory) -> None:
    done = trainer(scores=[1.0, 2.0], max_steps=5, eval_every_steps=4, save_every_steps=100)
    train_state = fit(done)
    assert train_state.scores == {"4": 1.0, "5": 2.0}
    assert done.store.steps()[-1] == 5


def test_patience_ends_the_training(trainer: Factory) -> None:
    """Best at the second validation, then two without gain: an equal score is none."""
    train_state = fit(trainer(scores=[1, 3, 3, 2, 9], max_steps=100, eval_every_steps=2, patience=2))
    assert train_state.step == 8
    assert train_state.best_steps() == [4, 6, 8, 2]


def test_a_lower_loss_is_better(trainer: Factory) -> None:
    cfg = {"best_metric": "loss", "max_steps": 6, "eval_every_steps": 2}
    assert fit(trainer(scores=[5, 9, 7], **cfg)).best_steps()[0] == 4


def test_best_and_newest_checkpoints_are_kept(trainer: Factory) -> None:
    done = trainer(
        scores=[9, 1, 2, 8, 3, 4],
        max_steps=12,
        eval_every_steps=2,
        save_every_steps=2,
        keep_last=2,
        keep_best=2,
    )
    fit(done)
    assert done.store.steps() == [2, 8, 10, 12]


def test_a_step_saved_by_an_interruption_is_not_regular() -> None:
    train_state = TrainState(scores={"7": 1.0})
    assert regular_steps([5, 7, 10, 13, 20], train_state, TrainerConfig(save_every_steps=5)) == [5, 7, 10, 20]


def test_a_plateau_cuts_the_rate(trainer: Factory) -> None:
    optimizer = PlateauConfig(peak_rate=1e-2, warmup_steps=0, plateau_patience=2, reduce_factor=0.1)
    done = trainer(scores=[5, 6, 6, 6, 6], optimizer=optimizer, max_steps=5, eval_every_steps=1)
    assert fit(done).num_cuts == 1
    assert done.learning_rate(6) == pytest.approx(1e-3)


def test_a_loss_that_is_not_finite_leaves_the_weights_alone(trainer: Factory) -> None:
    broken = trainer(max_steps=3)
    with torch.no_grad():
        broken.parallel_model.model.get_parameter("output.weight")[5] = torch.inf
    before = weights(broken)
    with pytest.raises(
        TrainingStopped, match=r"^step 1: the loss is (nan|inf)\. The weights were left as step 0"
    ):
        fit(broken)
    assert torch.equal(weights(broken), before)
    assert broken.store.steps() == []


def test_resuming_below_a_lowered_limit_scores_what_there_is(trainer: Factory) -> None:
    """A run that was stopped before its first validation, and is then told to stop even earlier."""
    first = trainer(max_steps=6, eval_every_steps=100, save_every_steps=100)
    with Tracker(TrackedRun(first.store.directory.parent), TrackingConfig()) as tracker:
        stop = StopRequest()
        first._update(first.pairs_of_epoch(1), first.plan(first.pairs_of_epoch(1))[:1])
        first.save()
        stop.raise_if_requested(1)
        tracker.message("stopped")
    second = trainer(max_steps=1)
    checkpoint = second.store.latest(pytest.fail)
    assert checkpoint is not None
    second.resume(checkpoint)
    assert fit(second).best_steps() == [1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"accumulate": 0}, "trainer.accumulate must be at least 1, but is 0"),
        ({"max_steps": 0}, "trainer.max_steps must be positive, but is 0; use null for no limit"),
        ({"patience": -1}, "trainer.patience must not be negative, but is -1"),
        ({"label_smoothing": 1.0}, r"trainer.label_smoothing must be in \[0, 1\), but is 1.0"),
        ({"average": 4}, "trainer.average=4 needs as many checkpoints, but trainer.keep_last=3"),
        ({"average": 2, "average_of": AverageOf.best}, "but trainer.keep_best=1; set trainer.keep_best=2"),
    ],
)
def test_values_out_of_range_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TrainerConfig(**fields)
