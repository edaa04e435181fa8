"""Batches that do not fit into memory: tried before the first update, computed in parts, or refused."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.data.batches.batching import Batch
from nmt.data.encoded_pairs import EncodedPairs, RaggedIds
from nmt.errors import TrainingStopped, UserError
from nmt.files import read_json, write_json
from nmt.memory import is_out_of_memory
from nmt.training.memory import in_parts
from nmt.training.objectives.objective import LossModule, Objective
from nmt.training.optimizers.optimizer import optimizer_tensors
from nmt.training.trainer import Trainer
from tests.training.objectives.test_objective import Silent, Sums, consistency, cross_entropy, mean_teacher
from tests.training.test_trainer import Factory, fit, weights


class Small(Objective):
    """An objective whose batches of more than `most` pairs do not fit from `first_step` on.

    Memory ends in the forward pass, or with `backward` when nearly all gradients have been added.
    """

    def __init__(self, inner: Objective, most: int, *, backward: bool = False, first_step: int = 1):
        super().__init__(inner.cfg, Silent())
        self.inner, self.most, self.backward, self.first_step = inner, most, backward, first_step
        self.hook: Any = None

    def __call__(self, module: LossModule, batch: Batch, step: int) -> Sums:
        if self.hook is not None:
            self.hook.remove()
        self.inner.tensors = self.tensors
        loss, named = self.inner(module, batch, step)
        self.tensors = self.inner.tensors
        if len(batch.src) > self.most and step >= self.first_step:
            weight = module.model.get_parameter("encoder.0.self_attention.attention.query.weight")
            if not self.backward:
                exhausted(weight)
            self.hook = weight.register_hook(exhausted)
        return loss, named


def exhausted(x: Tensor) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_what_counts_as_out_of_memory() -> None:
    errors: list[BaseException] = []
    for allocate in (
        lambda: torch.empty(1 << 50),
        lambda: np.empty(1 << 50),
        lambda: torch.ones(2) @ torch.ones(3),
    ):
        try:
            allocate()
        except (RuntimeError, MemoryError) as error:
            errors.append(error)
    errors += [torch.OutOfMemoryError(), MemoryError(), OSError("can't allocate memory")]
    assert [is_out_of_memory(error) for error in errors] == [True, True, False, True, True, False]


def test_no_pair_is_lost_in_parts() -> None:
    batches = [np.arange(13), np.arange(20, 23)]
    assert [len(part) for part in in_parts(batches, 8)] == [2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1]
    for number in (1, 2, 4, 8):
        assert np.concatenate(in_parts(batches, number)).tolist() == np.concatenate(batches).tolist()


def gradients_of(trainer: Trainer, pairs: EncodedPairs, group: list[Any]) -> dict[str, Tensor]:
    """Return what an update of `group` makes of the moments of the optimizer."""
    trainer._update(pairs, group)
    trainer._read()
    return optimizer_tensors(trainer.amp_step.optimizer, trainer.parallel_model.model)


@pytest.mark.fault(22)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("objective", [cross_entropy, consistency])
def test_an_update_in_parts_is_the_same_update(
    trainer: Factory, pairs: EncodedPairs, objective: Callable[[], Objective], backward: bool
) -> None:
    """Its second batch does not fit, when gradients of the first one are there; 13 pairs make 4 parts."""
    whole = trainer(folder="whole", objective=objective())
    parts = trainer(folder="parts", objective=Small(objective(), 4, backward=backward))
    group = [np.arange(4), np.arange(4, 17), np.arange(17, 20)]
    expected, found = (gradients_of(made, pairs, group) for made in (whole, parts))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)
    assert parts.train_state.splits == 1
    assert parts.train_state.tokens == whole.train_state.tokens
    for name in ("loss", "nll", "tokens", "steps", "norm"):
        assert parts.train_state.window[name] == pytest.approx(whole.train_state.window[name], rel=1e-6)


@pytest.mark.fault(22)
def test_a_training_in_parts_says_so_once_and_counts(
    trainer: Factory, pairs: EncodedPairs, capsys: pytest.CaptureFixture[str]
) -> None:
    made = trainer(objective=Small(cross_entropy(), 4, first_step=3), max_steps=None, max_epochs=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made.gradients, "has_tried", True)
        train_state = fit(made)
    assert train_state.tokens == int(pairs.tgt_lengths.sum())
    large = sum(len(indices) > 4 for indices in plan_of(made, pairs)[2:])
    assert train_state.splits == large > 2
    said = [line for line in capsys.readouterr().err.splitlines() if "does not fit" in line]
    assert len(said) == 1
    assert re.search(
        r"a batch of \d+ pairs of up to \d source and \d target tokens does not fit into memory; it is "
        r"computed in 2 parts, to the same result .*: lower trainer.batch_tokens, which is 40, and raise "
        r"trainer.accumulate by the same factor",
        said[0],
    )
    lines = (made.store.directory.parent / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-2])["train/splits"] == large
    assert "train/splits" not in json.loads(lines[0])


def plan_of(trainer: Trainer, pairs: EncodedPairs) -> Any:
    trainer.train_state.epoch = 1
    return trainer.plan(pairs)


@pytest.mark.fault(22)
def test_a_batch_too_large_in_eight_parts_stops(trainer: Factory, pairs: EncodedPairs) -> None:
    made = trainer(objective=Small(cross_entropy(), 0))
    before = weights(made)
    with pytest.raises(
        TrainingStopped,
        match=r"step 1: a batch of 13 pairs .* does not fit into memory, not even in 8 parts; lower",
    ):
        made._update(pairs, [np.arange(13)])
    assert torch.equal(weights(made), before)


@pytest.mark.fault(22)
def test_a_doomed_training_dies_before_its_first_update(trainer: Factory) -> None:
    made = trainer(objective=Small(cross_entropy(), 0, backward=True))
    with pytest.raises(UserError, match=r"not even in 8 parts; lower trainer.batch_tokens, which is 40"):
        fit(made)
    assert (made.train_state.step, made.store.steps()) == (0, [])


@pytest.mark.parametrize("objective", [cross_entropy, mean_teacher])
def test_trying_the_largest_batches_changes_nothing(
    trainer: Factory, objective: Callable[[], Objective]
) -> None:
    """Of weights, moments, what the objective remembers, metrics and random numbers, with dropout."""
    made = [
        trainer(folder=name, objective=objective(), dropout=0.3, max_steps=3, log_every_steps=4)
        for name in ("tried", "not")
    ]
    made[1].gradients.has_tried = True
    for one in made:
        fit(one)
    tensors = [one.parallel_model.tensors(one.amp_step.optimizer) for one in made]
    torch.testing.assert_close(*tensors, rtol=0, atol=0)
    timeless = [{k: v for k, v in one.train_state.window.items() if k != "seconds"} for one in made]
    assert timeless[0] == timeless[1]


MEGABYTES_OF_BALLAST = 2


@pytest.mark.fault(22)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space of a process")
@pytest.mark.parametrize(("length", "megabytes", "code"), [(800, 150, 0), (8000, 14, 2)])
def test_memory_that_really_ends(
    tiny_model: Callable[..., Any], trainer: Factory, tmp_path: Path, length: int, megabytes: int, code: int
) -> None:
    """A batch of 16 pairs of 800 tokens takes more than 400 MB, a pair of 8000 tokens more than 100 MB."""
    side = RaggedIds(np.full(16 * length, 5, np.int32), np.full(16, length))
    long = EncodedPairs(side, side)
    result = tmp_path / "result.json"

    def body() -> None:
        made = trainer(batch_tokens=16 * length, max_steps=1)
        made.epochs.pairs_of_epoch = lambda epoch, stage: long
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + megabytes * 2**20,) * 2)
        ballast = []  # in whatever the tests before have left free
        with contextlib.suppress(RuntimeError, MemoryError):
            while True:
                ballast.append(torch.empty(MEGABYTES_OF_BALLAST * 2**18))
        del ballast[-megabytes // MEGABYTES_OF_BALLAST :]
        try:
            fit(made)
        except UserError as error:
            print(error, file=sys.stderr)
            sys.exit(error.exit_code)
        write_json(result, {"tokens": made.train_state.tokens, "splits": made.train_state.splits})

    process = multiprocessing.get_context("fork").Process(target=body)
    process.start()
    process.join(100)
    assert process.exitcode == code
    if not code:
        assert read_json(result) == {"tokens": 16 * length, "splits": 1}
