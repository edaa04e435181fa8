"""Trials of several processes: what they compute together, what the sweep learns of them, how they end."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from nmt.cli import report
from nmt.config.composed import Composed
from nmt.config.sweeps import SweepConfig
from nmt.config.trials import plan
from nmt.distributed import World, joined
from nmt.errors import Interrupted, TrainingStopped, UserError
from nmt.signals import StopRequest
from nmt.sweeps.attempts import attempt
from nmt.sweeps.drive import sweep
from nmt.sweeps.processes import Share
from nmt.verbs import VERBS
from tests.sweeps.test_slurm import TINY, preempt, slurm  # noqa: F401

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo"
)
Body = Callable[[World], dict[str, Any]]


def in_two(body: Body) -> tuple[int, Any]:
    """Return the exit code and the outcome of an attempt in two processes."""

    def work() -> dict[str, Any]:
        with joined(5.0) as world:
            return body(world)

    return attempt(work, report, processes=2)


def bleu(value: float) -> dict[str, Any]:
    return {"validation": {"bleu": value}}


def test_the_processes_of_an_attempt_compute_together(capfd: pytest.CaptureFixture[str]) -> None:
    def body(world: World) -> dict[str, Any]:
        print(f"rank {world.rank}")
        return bleu(sum(world.all_gather(world.rank + 1)) + 10 * torch.get_num_threads())

    code, outcome = in_two(body)
    assert (code, outcome.results, outcome.reason) == (
        0,
        bleu(3.0 + 10 * max(1, torch.get_num_threads() // 2)),
        "",
    )
    assert outcome.cpu_seconds > 0
    assert capfd.readouterr().out == "rank 0\n"


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_any_process_is_told_once(rank: int, capfd: pytest.CaptureFixture[str]) -> None:
    def body(world: World) -> dict[str, Any]:
        if world.rank == rank:
            raise TrainingStopped("the loss is not finite")
        world.barrier()
        return bleu(1.0)

    code, outcome = in_two(body)
    assert (code, outcome.results, outcome.reason) == (4, None, "the loss is not finite")
    assert capfd.readouterr().err.count("the loss is not finite") == 1


def test_a_bug_in_one_process_is_told_with_its_kind(capfd: pytest.CaptureFixture[str]) -> None:
    def body(world: World) -> dict[str, Any]:
        if world.rank == 1:
            raise KeyError("missing")
        world.barrier()
        return bleu(1.0)

    code, outcome = in_two(body)
    assert (code, outcome.reason) == (1, "KeyError: 'missing'")
    assert "Traceback" in capfd.readouterr().err


def test_a_process_that_is_killed_ends_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    def body(world: World) -> dict[str, Any]:
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        world.barrier()
        return bleu(1.0)

    code, outcome = in_two(body)
    assert (code, outcome.reason) == (4, "killed by SIGKILL, perhaps for lack of memory")


def test_a_process_that_is_killed_before_it_meets_the_others_ends_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work() -> dict[str, Any]:
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(100)
        return bleu(1.0)

    began = time.monotonic()
    code, outcome = attempt(work, report, processes=2)
    assert (code, outcome.reason) == (4, "killed by SIGKILL, perhaps for lack of memory")
    assert time.monotonic() - began < 50


def test_a_process_that_gives_no_sign_of_life_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.sweeps.attempts.LOST_SECONDS", 0.2)

    def work() -> dict[str, Any]:
        with joined(0.02) as world:
            if world.rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            world.barrier()
        return bleu(1.0)

    code, outcome = attempt(work, report, processes=2)
    assert code == 4
    assert re.match(r"rank 1 \(process \d+ on .+\) has given no sign of life for 1.2 seconds", outcome.reason)


def test_what_does_not_end_after_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.sweeps.attempts.LOST_SECONDS", 0.2)

    def work() -> dict[str, Any]:
        if os.environ["RANK"] == "0":  # which answers the other one
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        threading.Event().wait()
        return bleu(1.0)

    monkeypatch.setattr("nmt.distributed.Launch._watch", lambda *_: None)
    began = time.monotonic()
    assert attempt(work, report, processes=2)[1].reason == "killed by SIGKILL, perhaps for lack of memory"
    assert time.monotonic() - began < 50


def test_a_signal_reaches_every_process_and_a_sweep_goes_on(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["-m", "sweep.dir=sweep", "seed=1", "sweep.processes=2"]

    def train(trial: Composed) -> dict[str, Any]:
        with StopRequest() as stop, joined(5.0) as world, stop.deferred():
            world.barrier()
            if world.is_main:
                os.kill(sweeping, signal.SIGTERM)
            while not stop.requested:
                time.sleep(0.02)
            Path(f"saved-{world.rank}").touch()
        return bleu(1.0)

    sweeping = os.getpid()
    with pytest.raises(Interrupted):
        sweep(plan(VERBS["train"], command), train, report)
    assert sorted(path.name for path in Path().glob("saved-*")) == ["saved-0", "saved-1"]
    assert states() == ["stopped"]
    assert sweep(plan(VERBS["train"], command), lambda trial: bleu(4.0), report) == 0
    assert states() == ["done"]


def states() -> list[str]:
    return [one["state"] for one in json.loads(Path("sweep/sweep.json").read_text())["trials"]]


def test_each_process_of_a_trial_has_a_gpu() -> None:
    gpus = [str(number) for number in range(6)]
    parts = [Share.of(slot, 3, gpus, processes=2).gpus for slot in range(3)]
    assert parts == [["0", "1"], ["2", "3"], ["4", "5"]]
    assert [Share.of(slot, 3, gpus[:5], processes=2).gpus for slot in range(3)] == [
        ["0", "1"],
        ["2", "3"],
        ["0", "1"],
    ]
    assert Share.of(1, 2, gpus[:1], processes=2).gpus == ["0"]
    assert [Share.of(slot, 3, gpus[:2]).gpus for slot in range(3)] == [["0"], ["1"], ["0"]]


def test_processes_and_gpus_of_a_job_are_as_many() -> None:
    overrides = ["-m", "sweep.launcher=slurm", "sweep.slurm.gpus=4", "seed=1"]
    with pytest.raises(UserError, match=r"sweep\.slurm\.gpus=4, but .* sweep\.processes=1; set both to"):
        plan(VERBS["train"], overrides)
    assert plan(VERBS["train"], [*overrides, "sweep.processes=4"]).cfg.processes == 4
    with pytest.raises(UserError, match=r"sweep\.processes must be at least 1, but is 0"):
        SweepConfig(processes=0)


def test_a_verb_of_one_process_has_trials_of_one() -> None:
    with pytest.raises(UserError, match=r"sweep\.processes=2: nmt doctor runs in one process"):
        plan(VERBS["doctor"], ["-m", "data=toy", "sweep.processes=2"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_trainings_of_two_processes_end_as_those_of_one(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["-m", *TINY, "seed=1", "model.dropout=0.0"]
    for name, processes in (("one", 1), ("two", 2)):
        arguments = [*command, f"sweep.dir={name}", f"sweep.processes={processes}"]
        assert sweep(plan(VERBS["train"], arguments), VERBS["train"].run, report) == 0
    found = [json.loads(Path(f"{name}/seed-1/results.json").read_text()) for name in ("one", "two")]
    assert found[0]["validation"]["loss"] == pytest.approx(found[1]["validation"]["loss"], abs=1e-4)
    assert "on 2 x cpu" in Path("two/seed-1/train.log").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_of_two_processes_goes_on_after_a_preemption(slurm: Path) -> None:  # noqa: F811
    command = ["-m", "sweep.dir=sweep", "seed=1,2", "sweep.launcher=slurm", "sweep.processes=2", *TINY]
    preempting = threading.Thread(target=preempt, args=(slurm, Path("sweep/seed-1").absolute(), "101_0"))
    preempting.start()
    chosen = plan(VERBS["train"], [*command, "sweep.slurm.poll_seconds=0.2"])
    assert sweep(chosen, lambda trial: {}, report) == 0
    preempting.join()
    assert states() == ["done", "done"]
    assert (slurm / "requeued").read_text() == "again\n"
    assert "going on after step" in Path("sweep/seed-1/train.log").read_text()
