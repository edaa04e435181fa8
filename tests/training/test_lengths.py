"""Lengths in epochs and target tokens: what is understood, and what that is in updates."""

from __future__ import annotations

import pytest

from nmt.errors import UserError
from nmt.training.lengths import EpochSize, in_steps, parsed
from nmt.training.optimizers.schedule_configs import ExponentialConfig, LinearConfig, NoamConfig
from nmt.training.trainer_config import TrainerConfig

SIZE = EpochSize(steps=460, update_tokens=2500)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("2 epochs", 920),
        ("1epoch", 460),
        (".25 epochs", 115),
        ("10M tokens", 4000),
        ("500k tokens", 200),
        ("2500 tokens", 1),
        ("1 token", 1),  # no length is 0 updates
        ("0.0001 epochs", 1),
    ],
)
def test_lengths_are_counted_in_updates(text: str, steps: int) -> None:
    assert parsed("schedule.warmup_steps", text).steps(SIZE) == steps


@pytest.mark.parametrize(
    "text", ["2 weeks", "epoch", "0 epochs", "-1 epochs", "10m tokens", "500", "1e3 tokens"]
)
def test_another_text_is_refused_with_what_is_understood(text: str) -> None:
    with pytest.raises(
        UserError,
        match=r"schedule.warmup_steps must be a number of updates such as 500, or of epochs or target tokens "
        f"such as '2 epochs' or '10M tokens', but is '{text}'",
    ):
        LinearConfig(warmup_steps=text)  # type: ignore[arg-type]  # as it is typed


def test_fractions_of_updates_are_refused() -> None:
    with pytest.raises(UserError, match=r"schedule.decay_steps must be a number of updates .* but is '1.5'"):
        LinearConfig(decay_steps=1.5)  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match=r"trainer.max_steps must be a whole number, but is 100000.0; write 100000"
    ):
        TrainerConfig(max_steps=1e5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"trainer.eval_every_steps must be at least 1, but is 0"):
        TrainerConfig(eval_every_steps=0)


def test_a_config_is_counted_whole_and_checked_again() -> None:
    typed: object = "2 epochs"
    trainer = TrainerConfig(eval_every_steps=typed, save_every_steps=70, max_steps=typed)  # type: ignore[arg-type]
    counted = in_steps("trainer", trainer, SIZE)
    assert (counted.eval_every_steps, counted.save_every_steps, counted.log_every_steps) == (920, 70, 50)
    assert counted.max_steps == 920
    exponential = ExponentialConfig(interval_steps=typed, warmup_steps=typed)  # type: ignore[arg-type]
    assert in_steps("schedule", exponential, SIZE).interval_steps == 920
    assert in_steps("schedule", NoamConfig(warmup_steps=typed), SIZE).warmup_steps == 920  # type: ignore[arg-type]
    linear = LinearConfig(warmup_steps=1000, decay_steps=typed)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"decay_steps must be above schedule.warmup_steps=1000, but is 920"):
        in_steps("schedule", linear, SIZE)


def test_what_an_epoch_is_must_be_known() -> None:
    with pytest.raises(
        UserError, match=r"trainer.epoch_steps is missing, by which this run counts its epochs"
    ):
        parsed("x", "2 epochs").steps(EpochSize(None, 5))
