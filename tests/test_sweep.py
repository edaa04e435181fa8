"""Sweeps: each trial is a process of its own; the table, exit codes, signals and deaths of any kind."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest

from nmt.cli import print_error, report
from nmt.config.compose import Composed, compose
from nmt.config.roots import TrainConfig
from nmt.errors import Interrupted, TrainingStopped
from nmt.sweep import Action, score, sweep
from nmt.verbs import VERBS

Trials = list[Composed]
fault = pytest.mark.fault


@pytest.fixture(scope="module")
def trials() -> Callable[[int], Trials]:
    """Return a function of a number that returns as many trials: seed-1, seed-2, and so on."""
    composed = compose(VERBS["train"], ["-m", "seed=1,2,3,4,5,6"])
    return lambda number: composed[:number]


def seed_of(trial: Composed) -> int:
    return trial.to_config(TrainConfig).seed


def bleu(value: float) -> dict[str, Any]:
    return {"test": {"bleu": value}}


def test_a_sweep_ends_with_a_table(
    trials: Callable[[int], Trials], capfd: pytest.CaptureFixture[str]
) -> None:
    assert sweep(trials(3), lambda trial: bleu(30.0 + seed_of(trial)), report) == 0
    shown = capfd.readouterr()
    assert shown.out == (
        "trial   status  score\n"
        "seed-1  done    BLEU 31.00\nseed-2  done    BLEU 32.00\nseed-3  done    BLEU 33.00\n"
    )
    assert shown.err == "[1/3] seed-1\n[2/3] seed-2\n[3/3] seed-3\n"


@fault(34)
def test_whatever_ends_a_trial_ends_no_other(
    trials: Callable[[int], Trials], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Six trials of which four fail, each in its own way; again: the four alone have work to do."""

    def train(trial: Composed) -> dict[str, Any]:
        seed = seed_of(trial)
        finished = tmp_path / f"{seed}"
        if finished.exists():
            return bleu(float(finished.read_text()))
        (tmp_path / "begun").open("a").write(f"{seed} ")
        if seed == 1:
            raise TrainingStopped("the loss is nan\x1b[2J\nat step 3")
        if seed == 2:
            os._exit(9)
        if seed == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if seed == 4:
            return bleu(float("nan"))
        finished.write_text(f"{seed}")
        return bleu(float(seed))

    table = [
        "trial   status  score",
        r"seed-1  failed  the loss is nan\x1b[2J",
        "seed-2  failed  exit code 9",
        "seed-3  failed  killed by SIGKILL, perhaps for lack of memory",
        "seed-4  failed  the score bleu is nan",
        "seed-5  done    BLEU 5.00",
        "seed-6  done    BLEU 6.00",
    ]
    for begun in ("1 2 3 4 5 6 ", "1 2 3 4 "):
        assert sweep(trials(6), train, report) == 3
        shown = capfd.readouterr()
        assert shown.out.splitlines() == table
        assert "error: the loss is nan\\x1b[2J\nat step 3\n" in shown.err
        assert (tmp_path / "begun").read_text() == begun
        (tmp_path / "begun").unlink()


@fault(34)
def test_a_bug_and_a_segmentation_fault_have_their_reasons(
    trials: Callable[[int], Trials], capfd: pytest.CaptureFixture[str]
) -> None:
    def train(trial: Composed) -> dict[str, Any]:
        if seed_of(trial) == 1:
            raise MemoryError("no room")
        faulthandler.disable()  # pytest's, which shows all threads
        os.kill(os.getpid(), signal.SIGSEGV)
        return {}

    assert sweep(trials(2), train, report) == 3
    shown = capfd.readouterr()
    assert shown.out.splitlines()[1:] == [
        "seed-1  failed  MemoryError: no room",
        "seed-2  failed  killed by SIGSEGV",
    ]
    assert "Traceback" in shown.err


def begun(trials: Trials, action: Action) -> ForkProcess:
    """Start a sweep as the leader of a process group, as a shell does."""

    def drive() -> None:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os._exit(report(lambda: sweep(trials, action, report), print_error))

    process = multiprocessing.get_context("fork").Process(target=drive)
    process.start()
    return process


def wait_for(happened: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < limit, "did not happen"
        time.sleep(0.02)


def runs(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@fault(18)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_trial_save_starts_no_other_and_shows_the_table(
    number: signal.Signals,
    trials: Callable[[int], Trials],
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def train(trial: Composed) -> dict[str, Any]:
        if seed_of(trial) == 1:
            return bleu(31.0)
        received = list[int]()
        signal.signal(number, lambda number, _: received.append(number))
        (tmp_path / "begun").touch()
        wait_for(lambda: bool(received))
        time.sleep(0.2)  # in which the same signal might arrive a second time
        assert received == [number]
        raise Interrupted(number, saved)

    saved = f"stopped by {number.name} after step 7, which is saved"
    process = begun(trials(3), train)
    wait_for((tmp_path / "begun").exists)
    assert process.pid is not None
    os.killpg(process.pid, number)  # as a terminal does
    process.join()
    assert process.exitcode == 128 + number
    shown = capfd.readouterr()
    name = number.name
    assert shown.out.splitlines()[1:] == ["seed-1  done    BLEU 31.00", f"seed-2  stopped  {saved}"]
    end = f"stopped by {name}; 1 of 3 trials are done; the same command goes on from there"
    assert shown.err.splitlines() == ["[1/3] seed-1", "[2/3] seed-2", saved, end]


@fault(34)
def test_a_killed_sweep_leaves_no_trial_behind_and_loses_none(
    trials: Callable[[int], Trials], tmp_path: Path
) -> None:
    def train(trial: Composed) -> dict[str, Any]:
        seed = seed_of(trial)
        if seed == 2:
            (tmp_path / "pid.tmp").write_text(str(os.getpid()))
            (tmp_path / "pid.tmp").rename(tmp_path / "pid")
            time.sleep(60)
        (tmp_path / f"{seed}").touch()
        return {}

    process = begun(trials(3), train)
    wait_for((tmp_path / "pid").exists)
    trial = int((tmp_path / "pid").read_text())
    assert runs(trial)
    process.kill()
    process.join()
    wait_for(lambda: not runs(trial))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "pid"]


@pytest.mark.parametrize(
    ("results", "shown"),
    [
        ({"validation": {"bleu": 1.0, "perplexity": 9.0}, "test": {"bleu": 2.0}}, "BLEU 2.00"),
        ({"validation": {"bleu": 1.0, "perplexity": 9.0}}, "BLEU 1.00  perplexity 9.00"),
        ({"validation": {"perplexity": 9.0}}, "perplexity 9.00"),
        ({"test": {"perplexity": 9.0, "ter": 70.0}}, "TER 70.00  perplexity 9.00"),
        ({"signatures": {}}, "-"),
    ],
)
def test_the_score_of_a_trial(results: dict[str, Any], shown: str) -> None:
    assert score(results) == shown
