"""What a training says of the size of its updates, and what it warns of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nmt.data.batches.batching import dealt
from nmt.training.trainer_config import TrainerConfig
from nmt.training.update_size import described, doubts


@pytest.mark.parametrize(
    ("accumulate", "processes", "each"),
    [(1, 8, 500), (4, 8, 2000), (8, 8, 4000), (12, 8, 6000), (3, 2, 6000), (16, 1, 64_000)],
)
def test_the_line_says_what_a_process_is_dealt(accumulate: int, processes: int, each: int) -> None:
    """A batch of 400 pairs of 10 tokens has 4,000."""
    group = np.split(np.arange(400 * accumulate), accumulate)
    for rank in range(processes):
        assert sum(len(part) for part in dealt(group, accumulate, rank, processes)) * 10 == each
    line = described(TrainerConfig(batch_tokens=4000, accumulate=accumulate), 1, processes)
    assert line.startswith(
        f"an update has {accumulate} batch{'es' * (accumulate > 1)} of at most 4,000 tokens"
    )
    assert (f"; {accumulate * 4000:,} in all" in line) is (accumulate > 1)
    told = f"; each of {processes} processes computes about {each:,}"
    assert line.endswith(told) is (processes > 1)


@pytest.mark.parametrize(
    ("cfg", "processes", "said"),
    [
        ({}, 1, []),
        ({"accumulate": 8}, 8, []),
        ({"max_tokens": 20 * 4096}, 1, []),
        (
            {"accumulate": 2},
            8,
            [
                "trainer.accumulate=2 is less than the 8 processes, which share a batch: "
                "trainer.batch_tokens=4096 is for all of them together, and each computes about 1,024 tokens "
                "of an update; trainer.accumulate=8 gives each a batch, and an update 32,768 tokens"
            ],
        ),
        ({"accumulate": 2, "changes": [{"step": 5, "accumulate": 8}]}, 8, ["trainer.accumulate=2 is less"]),
        (
            {"max_tokens": 4096},
            1,
            [
                "trainer.max_tokens=4096 ends the training after so many target tokens, of which a single "
                "update may have 4,096; the size of a batch is trainer.batch_tokens"
            ],
        ),
        ({"max_tokens": 20 * 4096, "accumulate": 2}, 2, ["trainer.max_tokens=81920 ends the training"]),
    ],
)
def test_settings_that_often_mean_something_else_are_doubted(
    cfg: dict[str, Any], processes: int, said: list[str]
) -> None:
    found = list(doubts(TrainerConfig(**cfg), 1, processes))
    assert [one[: len(text)] for one, text in zip(found, said, strict=True)] == said


def test_changed_updates_are_those_that_a_resumed_training_begins_with() -> None:
    cfg = TrainerConfig(changes=[{"step": 5, "accumulate": 8}])
    assert (len(list(doubts(cfg, 4, 8))), list(doubts(cfg, 5, 8))) == (1, [])
    assert described(cfg, 5, 8).startswith("an update has 8 batches")
