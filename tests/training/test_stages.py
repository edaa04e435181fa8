"""Training in stages: each update is made with the data of its stage, whatever interrupts the training."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from nmt.data.batches.batching import Indices
from nmt.data.encoded_pairs import EncodedPairs
from nmt.training.recovery import RolledBack
from nmt.training.trainer import Trainer
from nmt.training.trainer_config import OnNonfinite
from tests.training.test_recovery import Faulty, resumed
from tests.training.test_trainer import Factory, assert_same, fit

Staged = Callable[..., Trainer]
END = 7


@pytest.fixture
def staged(trainer: Factory, pairs: EncodedPairs) -> Staged:
    """Return a function of trainer fields; the targets of the first stage are the sources of the second."""
    both = [
        EncodedPairs(pairs.src, pairs.tgt, digest="one"),
        EncodedPairs(pairs.tgt, pairs.src, digest="two"),
    ]

    def build(stage_ends: Sequence[int] = (END,), **fields: Any) -> Trainer:
        made = trainer(**({"max_steps": 30, "eval_every_steps": 100, "dropout": 0.2} | fields))
        made.epochs.pairs_of_epoch = lambda epoch, stage: both[stage % 2]
        made.epochs.stage_ends = stage_ends
        return made

    return build


Seen = dict[int, tuple[str, int, list[list[int]]]]
"""Step -> digest of its pairs, epoch, and batches."""


def watched(made: Trainer) -> Seen:
    """Return what is going to be trained on, without the trial of the largest batches."""
    add, seen = made.gradients.add, Seen()

    def added(pairs: EncodedPairs, group: Sequence[Indices], step: int, *error: Any) -> Any:
        if not error:
            seen[step] = pairs.digest, made.train_state.epoch, [batch.tolist() for batch in group]
        return add(pairs, group, step, *error)

    made.gradients.add = added  # type: ignore[method-assign,assignment]
    return seen


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_stage_ends_with_its_last_update_and_the_next_begins_with_an_epoch(
    staged: Staged, pairs: EncodedPairs, accumulate: int
) -> None:
    made = staged(accumulate=accumulate, max_steps=12)
    seen = watched(made)
    fit(made)
    assert [seen[step][0] for step in range(1, 13)] == ["one"] * END + ["two"] * (12 - END)
    last, first = seen[END], seen[END + 1]
    assert first[1] == last[1] + 1
    other = EncodedPairs(pairs.tgt, pairs.src)
    made.train_state.epoch = first[1]
    assert first[2] == [batch.tolist() for batch in made.plan(other)[:accumulate]]
    made.train_state.epoch = last[1]
    plan, before = made.plan(pairs), [s for s in range(1, END) if seen[s][1] == last[1]]
    done = accumulate * len(before)
    assert last[2] == [batch.tolist() for batch in plan[done : done + accumulate]]
    assert len(last[2]) == accumulate


def test_an_epoch_that_ends_with_a_stage_is_no_epoch_more(staged: Staged, pairs: EncodedPairs) -> None:
    size = len(staged(folder="plan").plan(pairs))
    made = staged((size,), max_steps=size + 1)
    assert (fit(made).epoch, made.train_state.batch) == (2, 1)


@pytest.mark.fault(1, 6)
@pytest.mark.parametrize(
    "stopped", [END, *(pytest.param(step, marks=pytest.mark.slow) for step in (END - 1, END + 1))]
)
def test_a_run_goes_on_around_the_end_of_a_stage_as_if_nothing_had_happened(
    staged: Staged, stopped: int
) -> None:
    """Stopped right before, at and right after it, with accumulation and dropout."""
    straight = staged(folder="straight", accumulate=2, save_every_steps=30, log_every_steps=30)
    fit(straight)
    first = staged(accumulate=2, max_steps=stopped, save_every_steps=1)
    fit(first)
    second = resumed(staged(accumulate=2, save_every_steps=30, log_every_steps=30))
    assert second.train_state.step == stopped
    seen = watched(second)
    fit(second)
    assert [seen[step][0] for step in sorted(seen)] == ["one"] * (END - stopped) + ["two"] * (
        30 - max(END, stopped)
    )
    for made in (straight, second):  # the first part has validated at its end, and saved more often
        made.train_state.scores, made.train_state.losses, made.train_state.regular = {}, {}, []
        made.train_state.validations_without_gain = 0
        made.train_state.validations_without_lower_loss, made.train_state.lowest_loss = 0, None
    assert_same(second, straight)


def test_a_return_to_the_stage_before_goes_on_with_an_epoch_that_it_has_not_seen(staged: Staged) -> None:
    """From step 9 in the second stage to step 6 in the first."""
    rollback = {"on_nonfinite": OnNonfinite.rollback, "save_every_steps": 6, "max_steps": 12}
    first = staged(objective=Faulty(9), **rollback)
    for number in (0, 1):
        first.epochs.pairs_of_epoch(1, number).part(0).digest_before = "the stage before has others"
    epochs = watched(first)
    with pytest.raises(RolledBack, match="Going back to step 6"):
        fit(first)
    second = resumed(staged(**rollback))
    assert (second.train_state.step, second.train_state.batch) == (6, 0)
    assert second.train_state.epoch == max(epoch for _, epoch, _ in epochs.values()) + 1
    seen = watched(second)
    fit(second)
    assert [seen[step][0] for step in range(7, 13)] == ["one"] + ["two"] * 5


def test_the_largest_batches_of_each_stage_are_tried(staged: Staged) -> None:
    made = staged((2, 5), max_steps=8)
    add, tried = made.gradients.add, list[int]()

    def added(pairs: EncodedPairs, group: Sequence[Indices], step: int, *error: Any) -> Any:
        tried.extend([step] * len(error))
        return add(pairs, group, step, *error)

    made.gradients.add = added  # type: ignore[method-assign,assignment]
    fit(made)
    assert sorted(set(tried)) == [1, 3, 6]


def test_the_stage_of_an_update_is_logged(staged: Staged) -> None:
    found = {}
    for ends in ((2, 5), ()):
        made = staged(ends, max_steps=7, folder=f"ends{len(ends)}")
        fit(made)
        lines = (made.store.directory.parent / "metrics.jsonl").read_text().splitlines()
        found[ends] = [
            values.get("train/stage") for values in map(json.loads, lines) if "train/loss" in values
        ]
    assert found == {(2, 5): [1, 1, 2, 2, 2, 3, 3], (): [None] * 7}
