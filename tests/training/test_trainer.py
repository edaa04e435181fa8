"""The update, the limits, and what is validated, kept and stopped, on a model of a few thousand weights."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from nmt.data.batches.batching import Indices, plan_epoch
from nmt.data.encoded_pairs import EncodedPairs, InParts
from nmt.distributed import World
from nmt.errors import Interrupted, TrainingStopped, UserError
from nmt.signals import StopRequest
from nmt.training.checkpoint import Checkpoint, CheckpointStore
from nmt.training.objectives.objective import Objective
from nmt.training.optimizers.optimizer import optimizer_tensors
from nmt.training.optimizers.schedule_configs import PlateauConfig
from nmt.training.saving import Saves
from nmt.training.tracking.configs import TrackingConfig
from nmt.training.tracking.sinks import TrackedRun, Tracker
from nmt.training.train_state import TrainState, kept_steps, selected_steps
from nmt.training.trainer import Trainer
from nmt.training.trainer_config import AverageOf, TrainerConfig
from tests.training.objectives.test_objective import consistency, cross_entropy, mean_teacher
from tests.training.test_checkpoint import CALLS, run_until_call

Factory = Callable[..., Trainer]


def fit(trainer: Trainer, tracking: TrackingConfig | None = None) -> TrainState:
    run = TrackedRun(trainer.store.directory.parent, trainer.train_state.step)
    with Tracker(run, tracking or TrackingConfig()) as tracker:
        return trainer.fit(tracker, StopRequest())


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat(
        [parameter.detach().flatten() for parameter in trainer.parallel_model.model.parameters()]
    )


@pytest.mark.parametrize("objective", [cross_entropy, consistency])
def test_small_batches_together_are_one_large_batch(
    trainer: Factory, pairs: EncodedPairs, objective: Callable[[], Objective]
) -> None:
    """Of different sizes and lengths: each target token counts the same."""
    one, several = (trainer(folder=name, objective=objective()) for name in ("one", "several"))
    one._update(pairs, [np.arange(13)])
    several._update(pairs, [np.arange(3), np.arange(3, 4), np.arange(4, 13)])
    for made in (one, several):
        made._read()
    assert one.train_state.tokens == several.train_state.tokens == int(pairs.tgt_lengths[:13].sum())
    for side in ("src_positions", "tgt_positions"):
        assert several.train_state.window[side] < one.train_state.window[side]  # less padding
    for name in {"loss", "nll", "kl"} & one.train_state.window.keys():
        assert one.train_state.window[name] == pytest.approx(several.train_state.window[name], rel=1e-5)
    moments = [
        optimizer_tensors(made.amp_step.optimizer, made.parallel_model.model) for made in (one, several)
    ]
    torch.testing.assert_close(*moments, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_an_epoch_uses_every_token_once(trainer: Factory, pairs: EncodedPairs, accumulate: int) -> None:
    train_state = fit(trainer(max_steps=None, max_epochs=2, accumulate=accumulate))
    assert train_state.tokens == 2 * int(pairs.tgt_lengths.sum())
    assert (train_state.epoch, train_state.batch) == (3, 0)


@pytest.mark.fault(6)
def test_an_epoch_goes_on_with_the_pairs_that_it_began_with(trainer: Factory, pairs: EncodedPairs) -> None:
    pairs.digest = "some pairs"
    begun = fit(trainer(max_steps=3))
    assert (begun.batch, begun.digest) == (3, "some pairs")
    resumed = trainer(folder="resumed", max_steps=4)
    resumed.train_state, pairs.digest = begun, "other pairs"
    with pytest.raises(UserError, match="the training data has changed since step 3; start a new run"):
        fit(resumed)
    begun.epoch, begun.batch = 2, 0  # a new epoch may have other pairs
    assert fit(resumed).digest == "other pairs"


def test_a_rank_that_reads_other_pairs_ends_the_training(trainer: Factory, pairs: EncodedPairs) -> None:
    class OfOthers(World):
        def broadcast(self, value: Any) -> Any:
            return "other pairs" if value else value

    pairs.digest = "some pairs"
    made = trainer(max_steps=1)
    made.epochs.world = OfOthers(rank=1, size=2)
    told = "^rank 1 reads other training data than rank 0; give all ranks the same data$"
    with pytest.raises(UserError, match=told):
        fit(made)
    assert made.train_state.step == 0


@pytest.mark.fault(6)
def test_a_buffer_of_a_stream_follows_the_one_before(trainer: Factory, pairs: EncodedPairs) -> None:
    """Also where a checkpoint is between two; the first buffer of a stage follows none."""
    stream = trainer(max_steps=3)
    end = len(stream.plan(pairs))
    pairs.digest, pairs.digest_before = "one", "nothing"
    first = fit(trainer(max_steps=end))
    assert (first.epoch, first.batch, first.digest) == (2, 0, "one")
    for ends, before in (((), "one"), ((end,), "other")):
        pairs.digest, pairs.digest_before = "two", before
        resumed = trainer(folder=before, max_steps=end + 1)
        resumed.train_state, resumed.epochs.stage_ends = replace(first), ends
        assert fit(resumed).digest == "two"
    resumed = trainer(folder="resumed", max_steps=end + 1)
    resumed.train_state = first
    with pytest.raises(UserError, match=f"the training data has changed since step {end}; start a new run"):
        fit(resumed)


@pytest.mark.parametrize(("batch", "epoch"), [(3, 1), (1000, 2)])
def test_an_epoch_begun_by_a_version_without_digests_goes_on(
    trainer: Factory, pairs: EncodedPairs, batch: int, epoch: int
) -> None:
    """Also when that version sampled more batches than there are now."""
    pairs.digest = "some pairs"
    resumed = trainer(max_steps=4)
    resumed.train_state = TrainState(step=3, batch=batch)
    assert (fit(resumed).epoch, resumed.train_state.digest) == (epoch, "some pairs")


def test_the_first_limit_ends_the_training(trainer: Factory) -> None:
    assert fit(trainer(max_steps=5, max_epochs=100)).step == 5
    train_state = fit(trainer(folder="tokens", max_steps=100, max_tokens=100))
    assert 100 <= train_state.tokens < 200
    late = trainer(folder="minutes", max_steps=100, max_minutes=2)
    late.train_state.seconds = 60.0
    assert late.share_done() == 0.5
    late.train_state.seconds = 119.999
    assert 0 < fit(late).step < 100


def test_the_last_step_is_validated_and_saved(trainer: Factory) -> None:
    done = trainer(scores=[1.0, 2.0], max_steps=5, eval_every_steps=4, save_every_steps=100)
    train_state = fit(done)
    assert train_state.scores == {"4": 1.0, "5": 2.0}
    assert done.store.steps()[-1] == 5


def test_a_training_without_weights_is_refused(trainer: Factory, pairs: EncodedPairs) -> None:
    made = trainer(max_steps=1)
    nothing = EncodedPairs(pairs.src, pairs.tgt, weights=np.zeros(len(pairs), np.float32))
    made.epochs.pairs_of_epoch = lambda epoch, *stage: nothing
    with pytest.raises(UserError, match="the weight of each training pair is 0"):
        fit(made)


def test_patience_ends_the_training(trainer: Factory, capsys: pytest.CaptureFixture[str]) -> None:
    """Best at the second validation, then two without gain: an equal score is none."""
    train_state = fit(trainer(scores=[1, 3, 3, 2, 9], max_steps=100, eval_every_steps=2, patience=2))
    assert train_state.step == 8
    assert train_state.best_steps() == [4, 6, 8, 2]
    assert "trainer.patience=2 ends the training at step 8: its last validations" in capsys.readouterr().err


def test_of_equal_scores_the_lower_loss_is_better(trainer: Factory) -> None:
    """Also across an interruption; a version that kept no losses left equal scores in their order."""
    losses = {2: 9.0, 4: 8.0, 6: 5.0, 8: 7.0, 10: 6.0}

    def made(max_steps: int) -> Trainer:
        found = trainer(max_steps=max_steps, eval_every_steps=2, save_every_steps=2, patience=2)
        found.validate = lambda step: {"valid/bleu": 0.0, "valid/loss": losses[step]}
        return found

    fit(made(8))
    then = resumed(made(100))
    assert then.train_state.validations_without_gain == 1
    assert fit(then).step == 10
    assert then.train_state.best_steps() == [6, 10, 8, 4, 2]
    assert 6 in then.store.steps()
    checkpoint = then.store.load(8)
    del checkpoint.state["progress"]["losses"]
    old = made(10)
    old.resume(checkpoint)
    assert old.train_state.best_steps() == [2, 4, 6, 8]
    assert fit(old).best_steps()[0] == 10


def test_a_lower_loss_is_better(trainer: Factory) -> None:
    cfg = {"best_metric": "loss", "max_steps": 6, "eval_every_steps": 2}
    assert fit(trainer(scores=[5, 9, 7], **cfg)).best_steps()[0] == 4
    state = fit(trainer(scores=[5, math.nan, 7], **cfg))  # no number is worse than all
    assert state.best_steps() == [6, 2, 4]
    assert state.validations_without_gain == 0


@pytest.mark.parametrize(("save_every_steps", "kept"), [(2, [2, 8, 10, 12]), (100, [2, 8, 12])])
def test_best_and_newest_checkpoints_are_kept(
    trainer: Factory, save_every_steps: int, kept: list[int]
) -> None:
    """Those that are best when they are validated are saved wherever they are."""
    done = trainer(
        scores=[9, 1, 2, 8, 3, 4],
        max_steps=12,
        eval_every_steps=2,
        save_every_steps=save_every_steps,
        keep_last=2,
        keep_best=2,
    )
    fit(done)
    assert done.store.steps() == kept


SAVING = {"max_steps": 10, "eval_every_steps": 100, "save_every_steps": 2, "keep_last": 9}


@pytest.fixture
def full_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function of steps and an error of the system, which fsync then raises for their files."""

    def fail(steps: Sequence[int], number: int = errno.ENOSPC) -> None:
        fsync = os.fsync

        def refusing(descriptor: int) -> None:
            file = os.readlink(f"/proc/self/fd/{descriptor}")
            if any(f"step_{step:08d}" in file for step in steps):
                raise OSError(number, os.strerror(number))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", refusing)

    return fail


def outcome(trainer: Trainer) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return weights, optimizer and progress, which must not depend on what happened on the way."""
    progress = dataclasses.asdict(trainer.train_state)
    reported = {"window", "first_loss", "last_losses"}  # `update` reports nothing
    timeless = {key: value for key, value in progress.items() if "seconds" not in key and key not in reported}
    state = optimizer_tensors(trainer.amp_step.optimizer, trainer.parallel_model.model)
    return {"weights": weights(trainer), **state}, timeless


def assert_same(one: Trainer, other: Trainer) -> None:
    (tensors, progress), (expected, timeless) = outcome(one), outcome(other)
    assert progress == timeless
    torch.testing.assert_close(tensors, expected, rtol=0, atol=0)


def update(trainer: Trainer, count: int) -> None:
    """Do `count` updates of the first epoch and nothing else."""
    pairs = trainer.epochs.pairs_of_epoch(1, 0).part(0)
    plan = trainer.plan(pairs)
    trainer.epochs.require_same(trainer.train_state, pairs, len(plan))
    for batch in plan[trainer.train_state.batch :][:count]:
        trainer._update(pairs, [batch])
        trainer._move_on(1, len(plan))


def resumed(trainer: Trainer) -> Trainer:
    """Return `trainer` after the newest checkpoint in its folder."""
    trainer.store.clean()
    checkpoint = trainer.store.latest(pytest.fail)
    if checkpoint is not None:
        trainer.resume(checkpoint)
    return trainer


class Killed(BaseException):
    """What ends a process here, and leaves nothing but what was saved before."""


def killed_after(step: int, made: Trainer) -> None:
    """Train until the gradients of the update after `step` are to be computed, and be killed there."""
    add = made.gradients.add

    def add_or_die(*arguments: Any) -> Sequence[Indices]:
        if made.train_state.step == step:
            raise Killed
        return add(*arguments)

    made.gradients.add = add_or_die  # type: ignore[method-assign,assignment]
    with pytest.raises(Killed):
        fit(made)


@pytest.mark.fault(4)
def test_three_kills_in_one_epoch_change_nothing(trainer: Factory) -> None:
    """In the middle of it, right after a validation that no save follows, and at its end."""
    scores = {4: 1.0, 8: 9.0, 12: 5.0, 13: 6.0}

    def build(folder: str = "run") -> Trainer:
        cfg = {"batch_tokens": 35, "eval_every_steps": 4, "save_every_steps": 3, "keep_last": 9}
        made = trainer(folder=folder, dropout=0.2, max_steps=13, keep_best=1, **cfg)
        made.validate = lambda step: {"valid/bleu": -scores[step], "valid/loss": scores[step]}
        return made

    straight = build("straight")
    fit(straight)
    for step, newest in ((5, 4), (8, 6), (9, 9)):
        made = resumed(build())
        killed_after(step, made)
        assert (made.store.steps()[-1], made.train_state.epoch) == (newest, 2 if step == 9 else 1)
    last = resumed(build())
    fit(last)
    assert_same(last, straight)
    assert last.store.steps() == straight.store.steps()
    logged = [(made.store.directory.parent / "metrics.jsonl").read_text() for made in (last, straight)]
    of_steps = [
        [{k: v for k, v in json.loads(line).items() if "second" not in k} for line in text.splitlines()]
        for text in logged
    ]
    assert of_steps[0] == of_steps[1]


@pytest.mark.fault(12)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
def test_a_failed_save_does_not_end_the_training(
    trainer: Factory, full_at: Callable[..., None], number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    straight, interrupted = trainer(folder="straight", **SAVING), trainer(**SAVING)
    fit(straight)
    full_at((4, 6), number)
    fit(interrupted)
    assert interrupted.store.steps() == [2, 8, 10]
    assert sorted(path.name[0] for path in interrupted.store.directory.iterdir()) == ["s"] * 3  # no .tmp-*
    assert_same(interrupted, straight)
    log = capsys.readouterr().err
    for step, before, left in ((4, "2", 2), (6, "2", 1)):
        assert (
            f"error: cannot write checkpoint {interrupted.store.folder(step)}: {os.strerror(number)}; "
            f"steps saved before and intact: {before}; make room or fix the permissions, then run the same "
            f"command again. Training goes on; it stops after {left} more failures in a row"
        ) in log


@pytest.mark.fault(12)
def test_repeated_failures_to_save_end_the_training_which_then_goes_on(
    trainer: Factory, full_at: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, stopped = trainer(folder="straight", **SAVING), trainer(**SAVING)
    fit(straight)
    full_at(range(4, 100))
    with pytest.raises(
        TrainingStopped, match=r"^cannot write checkpoint .*step_00000008: No space left"
    ) as raised:
        fit(stopped)
    assert raised.value.exit_code == 4
    assert stopped.store.steps() == [2]
    monkeypatch.undo()
    again = resumed(trainer(**SAVING))
    fit(again)
    assert_same(again, straight)
    file = again.store.directory.parent / "metrics.jsonl"
    steps = [json.loads(line)["step"] for line in file.read_text().splitlines()]
    assert steps == [*range(1, 11), 10]


@pytest.mark.fault(12)
@pytest.mark.parametrize("steps", [[3], [10]])
def test_a_save_that_nothing_follows_must_succeed(
    trainer: Factory, full_at: Callable[..., None], monkeypatch: pytest.MonkeyPatch, steps: list[int]
) -> None:
    """One that a signal asks for, and the last one."""
    made = trainer(**SAVING)
    full_at(steps)
    stop = StopRequest()
    update = made._update

    def update_and_signal(*arguments: Any) -> None:
        update(*arguments)
        if made.train_state.step == steps[0] == 3:
            stop.signal = signal.SIGTERM

    monkeypatch.setattr(made, "_update", update_and_signal)
    with (
        Tracker(TrackedRun(made.store.directory.parent), TrackingConfig(sinks=[])) as tracker,
        pytest.raises(TrainingStopped, match="No space left on device"),
    ):
        made.fit(tracker, stop)
    assert made.train_state.step == steps[0]


@pytest.mark.fault(12)
def test_a_disk_without_room_for_checkpoints_is_noticed_before_the_first_step(
    trainer: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(**SAVING)
    size = 4 * len(weights(made))
    needed = int(2.5 * 3 * size)
    monkeypatch.setattr("nmt.files.shutil.disk_usage", lambda _: SimpleNamespace(free=needed - 1))
    with pytest.raises(TrainingStopped) as raised:
        fit(made, TrackingConfig(sinks=[]))
    assert str(raised.value) == (
        f"cannot write checkpoints to {made.store.directory}: {needed:,} bytes are needed, "
        f"but {needed - 1:,} are free; steps saved before and intact: none; "
        "make room or fix the permissions, then run the same command again"
    )
    assert made.train_state.step == 0
    monkeypatch.setattr("nmt.files.shutil.disk_usage", lambda _: SimpleNamespace(free=needed))
    assert fit(made, TrackingConfig(sinks=[])).step == 10
    monkeypatch.setattr("nmt.files.shutil.disk_usage", lambda _: SimpleNamespace(free=needed // 2))
    again = resumed(trainer(**SAVING | {"max_steps": 12}))  # each new checkpoint takes the place of one
    assert fit(again, TrackingConfig(sinks=[])).step == 12


def test_a_checkpoint_is_that_of_its_step_while_the_training_goes_on(trainer: Factory) -> None:
    """The disk is so slow that two more updates change weights, moments, average and progress meanwhile."""
    fields = {"max_steps": 5, "save_every_steps": 3, "keep_last": 9, "ema_decay": 0.9}
    straight, made = trainer(folder="straight", **fields | {"max_steps": 3}), trainer(**fields)
    fit(straight)
    gone_on, update, write = threading.Event(), made._update, made.store.save

    def update_and_tell(*arguments: Any) -> None:
        update(*arguments)
        if made.train_state.step == 5:
            gone_on.set()

    def write_late(checkpoint: Checkpoint) -> None:
        assert gone_on.wait(60)
        write(checkpoint)

    made._update, made.store.save = update_and_tell, write_late  # type: ignore[method-assign,assignment]
    fit(made)
    assert made.store.steps() == [3, 5]
    for file in ("model.safetensors", "optimizer.safetensors"):
        found, expected = (one.store.folder(3) / file for one in (made, straight))
        assert found.read_bytes() == expected.read_bytes()
    assert TrainState.stored_in(made.store.load(3).state).step == 3


def test_a_score_may_be_a_number_of_numpy(trainer: Factory) -> None:
    made = trainer(scores=[np.float64(3.0)], **SAVING)
    assert fit(made).scores
    assert made.store.steps()


def test_an_error_of_a_save_that_no_user_made_is_raised(trainer: Factory) -> None:
    made = trainer(**SAVING)

    def broken(checkpoint: Checkpoint) -> NoReturn:
        raise KeyError(checkpoint.step)

    made.store.save = broken  # type: ignore[method-assign]
    with pytest.raises(KeyError, match="2"):
        fit(made)


class Told(World):
    """Rank 1 of two, as rank 0 tells it that a checkpoint cannot be written."""

    def broadcast(self, value: Any) -> Any:
        assert value is None
        return "cannot write it"


@pytest.mark.fault(12)
def test_all_ranks_decide_alike_about_a_failed_save(trainer: Factory) -> None:
    made = trainer(**SAVING)
    made._update(
        made.epochs.pairs_of_epoch(1, 0).part(0), made.plan(made.epochs.pairs_of_epoch(1, 0).part(0))[:1]
    )
    made.saves = Saves(Told(rank=1, size=2))
    lines: list[str] = []
    made.saves.log = lines.append
    for _ in range(3):
        made.save(must=False)
    with pytest.raises(TrainingStopped, match=r"^cannot write it$"):
        made.saves.finish()
    assert len(lines) == 2
    made.saves = Saves(Told(rank=1, size=2))
    with pytest.raises(TrainingStopped, match=r"^cannot write it$"):
        made.save()
    assert made.store.steps() == []


@pytest.mark.slow
@pytest.mark.fault(2, 3)
def test_killed_at_any_call_of_a_save_a_training_ends_the_same(trainer: Factory, tmp_path: Path) -> None:
    """The save of step 4 writes, replaces nothing and removes step 2."""
    plain = {**SAVING, "max_steps": 5, "keep_last": 1}
    straight = trainer(folder="straight", **plain)
    fit(straight)
    first = trainer(folder="first", **plain)
    update(first, 2)
    first.save()
    second = resumed(trainer(folder="first", **plain))
    update(second, 2)

    def save_in_thread() -> None:
        second.save(must=False)
        second.saves.finish()

    nth, ends, killed = 0, {}, True
    while killed:
        nth += 1
        folder = shutil.copytree(tmp_path / "first", tmp_path / f"run{nth}")
        second.store = CheckpointStore(folder / "checkpoints")
        killed = run_until_call(save_in_thread, nth, CALLS - {"write"})  # there is one of each tensor
        second.store.clean()
        newest = second.store.latest(pytest.fail)
        assert newest is not None
        assert {path.name for path in second.store.directory.iterdir()} <= {"step_00000002", "step_00000004"}
        ends[newest.step] = folder.name
    assert nth > 30
    assert ends.keys() == {2, 4}
    for name in ends.values():
        after = resumed(trainer(folder=name, **plain))
        fit(after)
        assert_same(after, straight)
        assert after.store.steps() == straight.store.steps()


def test_a_step_saved_by_an_interruption_is_not_regular() -> None:
    saved, train_state, cfg = (
        [5, 7, 10, 13, 20],
        TrainState(scores={"7": 1.0}),
        TrainerConfig(save_every_steps=5),
    )
    assert selected_steps(AverageOf.last, 3, saved, train_state, cfg) == [7, 10, 20]
    assert selected_steps(AverageOf.last, 9, saved, train_state, cfg) == [5, 7, 10, 20]


def test_checkpoints_that_another_interval_saved_are_among_the_newest(trainer: Factory) -> None:
    fields: dict[str, Any] = {"keep_last": 3, "keep_best": 1, "scores": [9.0, 1.0]}
    fit(trainer(max_steps=6, save_every_steps=2, **fields))
    later = resumed(trainer(max_steps=10, save_every_steps=5, **fields | {"scores": [1.0]}))
    assert later.store.steps() == [2, 4, 6]
    fit(later)
    assert later.store.steps() == [4, 6, 10]
    assert later.train_state.regular == [2, 4, 6, 10]
    (stored, cfg) = later.train_state.to_store(), later.cfg
    del stored["progress"]["regular"]  # as earlier versions stored it
    assert selected_steps(AverageOf.last, 9, [4, 6, 10], TrainState.stored_in(stored), cfg) == [6, 10]


def test_the_best_are_those_of_the_highest_score_that_are_saved() -> None:
    train_state, cfg = (
        TrainState(scores={"5": 1.0, "10": 3.0, "15": 4.0, "20": 2.0}),
        TrainerConfig(keep_last=1, save_every_steps=20),
    )
    assert selected_steps(AverageOf.best, 2, [5, 10, 20, 22], train_state, cfg) == [10, 20]
    assert kept_steps([5, 10, 20, 22], train_state, cfg) == {10, 20, 22}


SCORES = {4: 5.0, 8: 6.0, 12: 4.0, 16: 4.5, 20: 1.0, 21: 2.0}
"""The score of each validation; a plateau, and steps that are not among the best."""
INTERRUPTED = {"validation": 12, "encoding": 16, "update": 9, "save": 7, "end": 21}
"""What a signal meets, and the step that it leaves saved: the next one when a thread is saving.

Step 16 ends an epoch; it is validated, but no run saves it that is not interrupted."""


def signalled(made: Trainer, phase: str) -> Trainer:
    """Make `phase` send a signal in a trainer that does as any other does."""
    pairs_of_epoch, add_gradients, write = made.epochs.pairs_of_epoch, made.gradients.add, made.store.save
    due, arrived = {"validation": 12, "end": 21}.get(phase, 0), threading.Event()

    def send(happens: bool) -> None:
        if happens:
            os.kill(os.getpid(), signal.SIGTERM)

    def validate(step: int) -> dict[str, float]:
        torch.rand(step)  # as a search may draw
        values = {"valid/bleu": SCORES[step], "valid/loss": 100.0 - SCORES[step]}
        send(step == due)
        return values

    def encode(epoch: int, stage: int) -> InParts:
        send(phase == "encoding" and epoch == 3)
        return pairs_of_epoch(epoch, stage)

    def add(*arguments: Any) -> Sequence[Indices]:
        while phase == "save" and made.train_state.step == 6 and not made._stop.requested:
            time.sleep(0.001)
        arrived.set()
        send(phase == "update" and made.train_state.step == 8)
        return add_gradients(*arguments)

    def save(checkpoint: Checkpoint) -> None:
        if phase == "save" and checkpoint.step == 6:
            send(True)
            assert arrived.wait(60)
        write(checkpoint)

    made.validate, made.epochs.pairs_of_epoch = validate, encode
    made.gradients.add, made.store.save = add, save  # type: ignore[method-assign,assignment]
    return made


@pytest.mark.fault(16)
@pytest.mark.parametrize(
    "phase",
    [
        pytest.param(phase, marks=pytest.mark.slow if phase in ("validation", "end") else ())
        for phase in INTERRUPTED
    ],
)
def test_a_signal_in_any_phase_changes_nothing_at_the_end(trainer: Factory, phase: str) -> None:
    """Scores, patience, the plateau, what is kept, averaged and logged: all is that of a run without it."""

    def build(folder: str, phase: str = "") -> Trainer:
        plateau = PlateauConfig(peak_rate=1e-2, warmup_steps=0, plateau_patience=1, reduce_factor=0.5)
        cfg = {"max_steps": 21, "eval_every_steps": 4, "save_every_steps": 6, "keep_last": 3, "accumulate": 2}
        return signalled(trainer(folder=folder, schedule=plateau, batch_tokens=20, **cfg), phase)

    def outcome(made: Trainer) -> list[Any]:
        state = {key: value for key, value in vars(made.train_state).items() if "second" not in key}
        newest = selected_steps(AverageOf.last, 3, made.store.steps(), made.train_state, made.cfg)
        lines = (made.store.directory.parent / "metrics.jsonl").read_text().splitlines()
        logged = [{k: v for k, v in json.loads(line).items() if "second" not in k} for line in lines]
        return [state | {"window": window_of(made)}, newest, logged, weights(made).tolist()]

    straight, first, second = build("straight"), build("run", phase), build("run")
    fit(straight)
    run = TrackedRun(first.store.directory.parent)
    with pytest.raises(Interrupted), StopRequest() as stop, Tracker(run, TrackingConfig()) as tracker:
        first.fit(tracker, stop)
    assert first.store.steps()[-1] == INTERRUPTED[phase]
    checkpoint = second.store.latest(pytest.fail)
    assert checkpoint is not None
    second.resume(checkpoint)
    fit(second)
    assert outcome(second) == outcome(straight)


def test_a_signal_before_the_first_update_saves_nothing(trainer: Factory) -> None:
    made = trainer(max_steps=4)
    made.epochs.pairs_of_epoch = lambda epoch, stage: os.kill(os.getpid(), signal.SIGTERM)  # type: ignore[assignment,return-value]
    run = TrackedRun(made.store.directory.parent)
    message = "^stopped by SIGTERM; the same command takes it up again$"
    with (
        pytest.raises(Interrupted, match=message),
        StopRequest() as stop,
        Tracker(run, TrackingConfig()) as t,
    ):
        made.fit(t, stop)
    assert made.store.steps() == []


@pytest.mark.fault(3, 16)
def test_a_score_that_a_signal_put_off_is_taken_once(trainer: Factory) -> None:
    """Step 4, which no uninterrupted run saves, is scored after the signal; then the run is killed."""

    def kill(pairs: EncodedPairs) -> NoReturn:
        raise KeyboardInterrupt

    fields = {"max_steps": 8, "eval_every_steps": 4, "save_every_steps": 100}
    first = trainer(**fields)
    update(first, 4)
    first.train_state.scores = {"2": 9.0}
    first.save()
    second = resumed(trainer(scores=[1.0], **fields))
    second.plan = kill  # type: ignore[method-assign,assignment]
    with pytest.raises(KeyboardInterrupt):
        fit(second)
    assert resumed(trainer(**fields)).train_state.scores == {"2": 9.0, "4": 1.0}


def window_of(trainer: Trainer) -> dict[str, float]:
    """Return the sums of the window that are no times."""
    return {name: x for name, x in trainer.train_state.window.items() if name != "seconds"}


@pytest.mark.parametrize("objective", [cross_entropy, consistency, mean_teacher])
def test_a_training_goes_on_in_the_middle_of_a_window(
    trainer: Factory, objective: Callable[[], Objective]
) -> None:
    """Weights, what the objective remembers and the sums of the window are those of an uninterrupted run."""
    plain = {"log_every_steps": 4, "eval_every_steps": 100, "measures": ["weight_norm", "layer_grad_norm"]}
    straight = trainer(folder="straight", max_steps=3, objective=objective(), **plain)
    fit(straight)
    first = trainer(max_steps=2, objective=objective(), **plain)
    fit(first)
    second = trainer(max_steps=3, objective=objective(), **plain)
    checkpoint = second.store.latest(pytest.fail)
    assert checkpoint is not None
    second.resume(checkpoint)
    fit(second)
    assert window_of(second) == window_of(straight)
    assert {"loss", "update/weight_norm", "update/layer_grad_norm/encoder.0"} <= window_of(second).keys()
    assert torch.equal(weights(second), weights(straight))
    tensors = [made.parallel_model.tensors(made.amp_step.optimizer)[1] for made in (second, straight)]
    assert any(name.startswith("objective/") for name in tensors[0]) is (objective is mean_teacher)
    torch.testing.assert_close(*tensors, rtol=0, atol=0)


@pytest.mark.parametrize("measures", [[], ["weight_norm", "largest_gradient"]])
def test_a_window_whose_updates_were_measured_otherwise_starts_anew(
    trainer: Factory, measures: list[str]
) -> None:
    first = trainer(max_steps=2, log_every_steps=4, measures=["weight_norm"])
    fit(first)
    second = trainer(max_steps=3, log_every_steps=4, measures=measures)
    checkpoint = second.store.latest(pytest.fail)
    assert checkpoint is not None
    second.resume(checkpoint)
    fit(second)
    assert second.train_state.window["steps"] == 1


def test_a_window_of_an_earlier_version_goes_on(trainer: Factory) -> None:
    old = {"tokens": 10.0, "steps": 1.0, "seconds": 1.0, "flops": 5.0, "loss": 50.0, "nll": 40.0}
    old |= {"positions": 12.0, "norm": 2.0, "overflows": 0.0}
    first = trainer(max_steps=1)
    fit(first)
    second = trainer(max_steps=2, log_every_steps=2)
    checkpoint = second.store.latest(pytest.fail)
    assert checkpoint is not None
    checkpoint.state["progress"]["window"] = dict(old)
    del checkpoint.state["progress"]["sorts_by_target"]
    second.resume(checkpoint)
    assert second.train_state.window.keys() == {"tgt_positions", *old} - {"positions"}
    second._update(
        second.epochs.pairs_of_epoch(1, 0).part(0),
        second.plan(second.epochs.pairs_of_epoch(1, 0).part(0))[1:2],
    )
    second._read()
    window, tokens = second.train_state.window, second.train_state.tokens - first.train_state.tokens
    assert window.keys() == {"src_tokens", "src_positions", "tgt_positions", *old} - {"positions"}
    assert window["tokens"] == 10 + tokens
    assert second._measured()["train/loss"] == pytest.approx(window["loss"] / (10 + tokens))
    assert window["loss"] > 50


def test_a_run_of_an_earlier_version_keeps_its_batches(trainer: Factory) -> None:
    """In their old order, also after it was saved and resumed once more; several ranks deal their rows."""
    first = trainer(max_steps=1, accumulate=2)
    fit(first)
    pairs = first.epochs.pairs_of_epoch(1, 0).part(0)
    lengths = pairs.src_lengths, pairs.tgt_lengths
    old = list(map(list, plan_epoch(*lengths, seed=1, epoch=1, max_tokens=40, by_target=True)))
    assert list(map(list, first.plan(pairs))) != old
    checkpoint = first.store.latest(pytest.fail)
    assert checkpoint is not None
    del checkpoint.state["progress"]["sorts_by_target"]
    for _ in range(2):
        later = trainer(max_steps=2, accumulate=2)
        later.resume(checkpoint)
        assert list(map(list, later.plan(pairs))) == old
        later._follow_changes(2)
        assert later.gradients.accumulate == 1
        checkpoint = dataclasses.replace(checkpoint, state=later.train_state.to_store())


def test_a_plateau_cuts_the_rate(trainer: Factory) -> None:
    schedule = PlateauConfig(peak_rate=1e-2, warmup_steps=0, plateau_patience=2, reduce_factor=0.1)
    done = trainer(scores=[5, 6, 6, 6, 6], schedule=schedule, max_steps=5, eval_every_steps=1)
    assert fit(done).num_cuts == 1
    lines = (done.store.directory.parent / "metrics.jsonl").read_text().splitlines()
    rates = [record["train/lr"] for record in map(json.loads, lines) if "train/lr" in record]
    assert rates == pytest.approx([1e-2] * 4 + [1e-3])  # steps 3 and 4 are no better than 2


def test_a_validation_loss_that_is_not_a_number_is_never_the_lowest(trainer: Factory) -> None:
    """Nor one that an earlier version has stored."""
    losses = iter([math.nan, math.nan, 2.0, 1.0])
    schedule = PlateauConfig(peak_rate=1e-2, warmup_steps=0, plateau_patience=2)
    made = trainer(schedule=schedule, max_steps=4, eval_every_steps=1, best_metric="loss")
    made.validate = lambda step: {"valid/loss": next(losses)}
    done = fit(made)
    assert (done.lowest_loss, done.num_cuts, done.validations_without_lower_loss) == (1.0, 1, 0)
    of_before = replace(done, lowest_loss=math.nan).to_store()
    assert TrainState.stored_in(of_before) == replace(done, lowest_loss=None)


@pytest.mark.fault(20)
def test_a_loss_that_is_not_finite_leaves_the_weights_alone(trainer: Factory) -> None:
    broken = trainer(max_steps=3)
    with torch.no_grad():
        broken.parallel_model.model.get_parameter("output.weight")[5] = torch.inf
    before = weights(broken)
    with pytest.raises(
        TrainingStopped,
        match=r"^step 1: the loss is (nan|inf) on rank 0.*weights were left as step 0 made",
    ):
        fit(broken)
    assert torch.equal(weights(broken), before)
    assert broken.store.steps() == []


def test_resuming_below_a_lowered_limit_scores_what_there_is(trainer: Factory) -> None:
    """A run that was stopped before its first validation, and is then told to stop even earlier."""
    first = trainer(max_steps=6, eval_every_steps=100, save_every_steps=100)
    first._update(
        first.epochs.pairs_of_epoch(1, 0).part(0), first.plan(first.epochs.pairs_of_epoch(1, 0).part(0))[:1]
    )
    first.save()
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
        ({"max_recoveries": -1}, "trainer.max_recoveries must not be negative, but is -1"),
        ({"divergence_ratio": float("nan")}, "trainer.divergence_ratio must be finite and not negative"),
        ({"patience": -1}, "trainer.patience must not be negative, but is -1"),
        (
            {"measures": ["weight_norms"]},
            r"can hold .*, but holds 'weight_norms'; did you mean 'weight_norm'\?",
        ),
        ({"average": 4}, "trainer.average=4 needs as many checkpoints, but trainer.keep_last=3"),
        ({"average": 2, "average_of": AverageOf.best}, "but trainer.keep_best=1; set trainer.keep_best=2"),
    ],
)
def test_values_out_of_range_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TrainerConfig(**fields)
