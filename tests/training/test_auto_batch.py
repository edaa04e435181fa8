"""`trainer.batch_tokens=auto`: the search for a number, with memory that ends where a test says so."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.data.batches.batching import Batch
from nmt.data.encoded_pairs import EncodedPairs, RaggedIds
from nmt.errors import UserError
from nmt.runtime_config import Precision
from nmt.training import auto_batch
from nmt.training import gradients as gradients_module
from nmt.training.auto_batch import Found, Room, Trial, available, search
from nmt.training.objectives.objective import LossModule, Objective
from nmt.training.trainer_config import TrainerConfig
from tests.training.objectives.test_objective import Silent, Sums, cross_entropy
from tests.training.test_trainer import Factory

MB = 1 << 20


class Limited(Objective):
    """An objective whose batches of more than `most` padded tokens, on either side, do not fit."""

    def __init__(self, most: int):
        self.inner, self.most = cross_entropy(), most
        super().__init__(self.inner.cfg, Silent())

    def __call__(self, module: LossModule, batch: Batch, step: int) -> Sums:
        if max(batch.src.numel(), batch.tgt_out.numel()) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return self.inner(module, batch, step)


def many_pairs(count: int = 3000) -> EncodedPairs:
    """Return pairs of 2 to 9 tokens."""
    lengths = np.random.default_rng(1).integers(2, 10, count)
    side = RaggedIds(np.full(lengths.sum(), 5, np.int32), lengths)
    return EncodedPairs(side, side)


@pytest.mark.fault(22)
@pytest.mark.parametrize("most", [256, 300, 1000, 1024, 6000, 100_000])
@pytest.mark.parametrize("smallest", [1, 256, 200])
def test_the_number_is_right_below_what_fits(most: int, smallest: int) -> None:
    tried = []

    def trial(size: int) -> Trial:
        tried.append(size)
        return Trial(size <= most)

    found = search(trial, smallest, until_no_faster=False)
    assert found.size % 256 == 0
    assert found.size <= most
    assert found.size > 0.75 * most - 256
    assert len(tried) < 20
    assert max(tried) <= 2 * most + 256


def test_what_does_not_fit_at_all_is_left_to_the_trial_of_the_largest_batch() -> None:
    found = search(lambda size: Trial(False), 300, until_no_faster=False)
    assert found == Found(512, "larger batches do not fit into memory")


@pytest.mark.parametrize(
    ("fastest", "until_no_faster", "found"), [(512, True, 4096), (16384, True, 16384), (512, False, 65536)]
)
def test_on_cpu_a_batch_is_no_larger_than_makes_training_faster(
    fastest: int, until_no_faster: bool, found: int
) -> None:
    """One measurement that comes out slow does not end the search."""

    def trial(size: int) -> Trial:
        slow = 0.8 if size == 8192 else 1.0
        return Trial(True, size == 65536, 1.0, min(size, fastest) * slow)

    reason = (
        "larger batches do not train faster" if until_no_faster else "one batch holds all pairs of an epoch"
    )
    assert search(trial, 256, until_no_faster=until_no_faster) == Found(found, reason)


def test_memory_ends_the_search_that_speed_does_not() -> None:
    trial = lambda size: Trial(size <= 3000, speed=size)  # noqa: E731
    assert search(trial, 256, until_no_faster=True) == Found(2304, "2,816 fit into memory, 3,072 do not")


def test_the_search_ends_in_time() -> None:
    found = search(lambda size: Trial(True, seconds=size / 20), 256, until_no_faster=True)
    assert found == Found(1024, "the trials have taken more than 60 seconds")
    assert search(lambda size: Trial(True), 256, until_no_faster=False) == Found(1 << 24, "no more is tried")


@pytest.mark.fault(22)
def test_a_trainer_finds_what_fits(trainer: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients_module, "TIMED_SECONDS", 0)
    made = trainer(objective=Limited(2000), batch_tokens="auto", auto_batch_tokens=200)
    made.epochs.pairs_of_epoch = lambda epoch, stage: many_pairs()
    log: list[str] = []
    found = made.find_batch_tokens(log.append)
    assert 1280 <= found <= 2000
    assert log[0].startswith(f"trainer.batch_tokens=auto is {found:,} tokens: ")
    assert made.train_state.step == 0
    made = trainer(objective=Limited(2000), batch_tokens=found, max_steps=1)
    made.epochs.pairs_of_epoch = lambda epoch, stage: many_pairs()
    made.gradients.try_largest(many_pairs(), made.plan(many_pairs()), 1)


def test_an_optimizer_that_does_not_fit_ends_no_search_in_fp16(
    trainer: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients_module, "TIMED_SECONDS", 0)
    made = trainer(precision=Precision.fp16, batch_tokens="auto", auto_batch_tokens=16)
    step, sizes = made.gradients.amp_step, list[int]()

    def out_of_memory(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def trial(size: int) -> bool:
        sizes.append(size)
        return made.gradients.trial(many_pairs(), made.plan(many_pairs()), size, None).fits

    scale = step.scaler.get_scale()
    with monkeypatch.context() as patched:
        patched.setattr(step.optimizer, "step", out_of_memory)
        assert not trial(64)
        assert not trial(32)
    assert trial(32)
    assert step.scaler.get_scale() == scale


def test_moments_that_do_not_fit_are_told_of_in_any_way_to_a_batch(
    trainer: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam notes that it has a state of a parameter before there is memory for it."""
    monkeypatch.setattr(gradients_module, "TIMED_SECONDS", 0)
    make = torch.zeros_like

    def exhausted(*args: Any, **options: Any) -> Tensor:
        if "memory_format" in options:  # as Adam asks for its moments
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return make(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(torch, "zeros_like", exhausted)
        patched.setattr(gradients_module, "reserved", lambda *of: exhausted(*of, memory_format=None))
        log: list[str] = []
        made = trainer(batch_tokens="auto", auto_batch_tokens=16)
        assert made.find_batch_tokens(log.append) == 256
        assert log == ["trainer.batch_tokens=auto is 256 tokens: larger batches do not fit into memory"]
        made = trainer()
        with pytest.raises(UserError, match="what the optimizer keeps of the weights does not fit into"):
            made.gradients.try_largest(many_pairs(), made.plan(many_pairs()), 1)


def test_a_small_corpus_ends_the_search(trainer: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients_module, "TIMED_SECONDS", 0)
    log: list[str] = []
    made = trainer(batch_tokens="auto", auto_batch_tokens=16)
    assert made.find_batch_tokens(log.append) == 512
    assert log == ["trainer.batch_tokens=auto is 512 tokens: one batch holds all pairs of an epoch"]


def take_and_give_back(size: int) -> None:
    """Take memory from the system: an allocator may have some left."""
    with mmap.mmap(-1, size) as memory:
        for _ in range(size // MB):
            memory.write(b"x" * MB)


def test_a_trial_that_would_take_too_much_of_the_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 MB for 1,000 tokens; half of 100 MB is enough for 1,250 of them."""
    monkeypatch.setattr(auto_batch, "available", lambda: 100 * MB)
    room = Room()
    assert room.holds(1 << 30)
    take_and_give_back(40 * MB)
    room.measure(1000)
    assert [room.holds(size) for size in (1100, 1400)] == [True, False]
    room.measure(1000)  # of nothing
    assert room.holds(10_000)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    room = Room()
    take_and_give_back(40 * MB)
    room.measure(1000)
    assert [room.holds(size) for size in (550, 700)] == [True, False]


def test_the_memory_of_the_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_batch, "PROC", tmp_path / "proc")
    monkeypatch.setattr(auto_batch, "CGROUPS", tmp_path / "cgroups")
    with pytest.raises(
        UserError,
        match=r"trainer.batch_tokens=auto needs .*proc/meminfo of Linux to see how much memory there is; "
        "set trainer.batch_tokens to a number",
    ):
        available()

    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    write("proc/meminfo", "MemTotal:   900 kB\nMemAvailable:     700 kB\n")
    assert available() == 700 << 10
    write("proc/self/cgroup", "4:memory:/job/step\n3:cpuset:/\n0::/unit\n")
    write("cgroups/unit/memory.max", "max\n")
    write("cgroups/unit/memory.current", "5000\n")
    assert available() == 700 << 10
    write("cgroups/memory.max", "600000\n")
    write("cgroups/memory.current", "200000\n")
    write("cgroups/memory.stat", "anon 1000\ninactive_file 50000\n")
    assert available() == 450_000
    write("cgroups/memory/job/memory.limit_in_bytes", "300000\n")
    write("cgroups/memory/job/memory.usage_in_bytes", "100000\n")
    write("cgroups/memory/job/memory.stat", "inactive_file 7\ntotal_inactive_file 30000\n")
    assert available() == 230_000


def test_the_number_is_given_or_found() -> None:
    assert TrainerConfig(batch_tokens=512).tokens_per_batch == 512
    assert TrainerConfig(batch_tokens="auto", auto_batch_tokens=768).tokens_per_batch == 768
    assert TrainerConfig(batch_tokens="auto").is_to_be_found
    with pytest.raises(UserError, match=r"trainer.auto_batch_tokens is missing, which .* restore its config"):
        _ = TrainerConfig(batch_tokens="auto").tokens_per_batch


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"batch_tokens": 0}, "trainer.batch_tokens must be at least 1 or auto, but is 0"),
        ({"batch_tokens": "all"}, "trainer.batch_tokens must be at least 1 or auto, but is 'all'"),
        (
            {"batch_tokens": "auto", "auto_batch_tokens": 0},
            "trainer.auto_batch_tokens must be at least 1, but is 0",
        ),
        (
            {"auto_batch_tokens": 512},
            "trainer.auto_batch_tokens=512 is what trainer.batch_tokens=auto stands for, but "
            "trainer.batch_tokens is 4096; leave one of them out",
        ),
    ],
)
def test_a_number_that_cannot_be_is_refused(fields: dict[str, int | str], problem: str) -> None:
    with pytest.raises(UserError) as caught:
        TrainerConfig(**fields)  # type: ignore[arg-type]
    assert str(caught.value) == problem
