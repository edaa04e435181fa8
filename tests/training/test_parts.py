"""Epochs in parts: every pair once, and the same updates after an interruption anywhere in the epoch."""

from __future__ import annotations

import pytest
import torch

from nmt.data.batches import blocks
from nmt.data.batches.blocks import epochs_of
from nmt.data.encoded_pairs import EncodedPairs
from nmt.errors import TrainingStopped, UserError
from nmt.training.train_state import TrainState
from nmt.training.trainer import Trainer
from tests.training.test_recovery import Faulty, metrics_of
from tests.training.test_trainer import Factory, fit


@pytest.fixture
def parted(trainer: Factory, pairs: EncodedPairs, monkeypatch: pytest.MonkeyPatch) -> Factory:
    """Return a function that returns a trainer whose epochs have three parts."""
    size = len(pairs)
    for name, value in (("LARGE_PAIRS", size - 1), ("BLOCK_PAIRS", 4), ("PART_PAIRS", -(-size // 3))):
        monkeypatch.setattr(blocks, name, value)

    def build(folder: str = "run", seed: int = 1, **fields: object) -> Trainer:
        made = trainer(folder=folder, **fields)
        of_epoch = epochs_of([pairs], [1.0], seed)
        made.epochs.pairs_of_epoch = lambda epoch, stage: of_epoch(epoch)
        return made

    return build


@pytest.mark.parametrize("accumulate", [1, 3])
def test_an_epoch_in_parts_uses_every_token_once(
    parted: Factory, pairs: EncodedPairs, accumulate: int
) -> None:
    train_state = fit(parted(max_steps=None, max_epochs=2, accumulate=accumulate))
    assert train_state.tokens == 2 * int(pairs.tgt_lengths.sum())
    assert (train_state.epoch, train_state.part, train_state.batch) == (3, 0, 0)


def test_each_part_is_its_share_of_an_epoch(parted: Factory) -> None:
    plan, made = parted("plan"), parted(max_steps=None, max_epochs=1)
    of_epoch, sizes = plan.epochs.pairs_of_epoch(1, 0), list[int]()
    for part in range(3):
        plan.train_state.part = part
        sizes.append(len(plan.plan(of_epoch.part(part))))
    fit(made)
    expected = [(part + (batch + 1) / size) / 3 for part, size in enumerate(sizes) for batch in range(size)]
    assert [line["train/epoch"] for line in metrics_of(made)] == pytest.approx(expected)


@pytest.mark.fault(20)
def test_a_fault_says_in_which_part_its_pairs_are(
    parted: Factory, trainer: Factory, pairs: EncodedPairs
) -> None:
    """Pairs have numbers of their own in each part, and in each buffer of a stream."""
    plan = parted("plan")
    step = len(plan.plan(plan.epochs.pairs_of_epoch(1, 0).part(0))) + 1
    with pytest.raises(TrainingStopped, match=rf"^step {step}: .* for the pairs .* of part 2 of epoch 1\."):
        fit(parted(objective=Faulty(step)))
    streamed = trainer(folder="stream", objective=Faulty(1))
    pairs.digest_before = "the buffer before"
    with pytest.raises(TrainingStopped, match=r"^step 1: .* for the pairs .* of buffer 1\."):
        fit(streamed)


def test_a_resumed_run_is_the_uninterrupted_one_wherever_it_stops(parted: Factory) -> None:
    whole = parted("whole", max_steps=None, max_epochs=1)
    last, places = fit(whole).step, set()
    for stop in range(1, last, 3):
        fit(parted(f"run{stop}", max_steps=stop))
        resumed = parted(f"run{stop}", max_steps=None, max_epochs=1)
        checkpoint = resumed.store.latest(print)
        assert checkpoint is not None
        resumed.resume(checkpoint)
        places.add(resumed.train_state.part)
        fit(resumed)
        for name, x in whole.parameters.items():
            assert torch.equal(x, resumed.parameters[name]), (stop, name)
    assert places == {0, 1, 2}


def test_a_part_of_other_pairs_is_refused(parted: Factory, pairs: EncodedPairs) -> None:
    fit(parted(max_steps=1))
    for state, message in (
        (TrainState(step=1, part=1, digest="other"), "the training data has changed since step 1"),
        (TrainState(step=1, part=3), r"state.json of the checkpoint is after part 3 of \d of an epoch"),
    ):
        resumed = parted("other", max_steps=2)
        resumed.train_state = state
        with pytest.raises(UserError, match=message):
            fit(resumed)


def test_a_run_of_an_earlier_version_on_a_large_corpus_is_refused(parted: Factory) -> None:
    fit(parted(max_steps=None, max_epochs=1))
    later = parted(max_steps=None, max_epochs=2)
    checkpoint = later.store.latest(print)
    assert checkpoint is not None
    del checkpoint.state["progress"]["sorts_by_target"]
    later.resume(checkpoint)
    with pytest.raises(UserError, match=r"^an earlier version of nmt began this run, .* init=RUN keeps"):
        fit(later)
