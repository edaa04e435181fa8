"""status.json says how a training stands, however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from nmt.errors import Interrupted, NmtError, TrainingStopped, UserError
from nmt.files import write_json
from nmt.runs import status
from nmt.runs.directory import RunDirectory
from nmt.runs.status import Status
from nmt.signals import StopRequest


def failing(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


def signalled(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.fault(16, 17, 18)
@pytest.mark.parametrize(
    ("body", "state", "reason"),
    [
        (lambda: None, "finished", ""),
        (failing(TrainingStopped("step 3: the loss is nan\nmore")), "stopped", "step 3: the loss is nan"),
        (failing(UserError("no data")), "failed", "no data"),
        (failing(UserError("it differs:\n  a=1\nleave it out")), "failed", "it differs: a=1; leave it out"),
        (failing(ZeroDivisionError()), "failed", ""),
        (signalled(signal.SIGTERM), "preempted", "SIGTERM"),
        (signalled(signal.SIGINT), "preempted", "SIGINT"),
        (signalled(signal.SIGUSR1), "preempted", "SIGUSR1"),
    ],
)
def test_the_end_of_a_training_is_recorded(
    tmp_path: Path, body: Callable[[], None], state: str, reason: str
) -> None:
    run = RunDirectory(tmp_path)
    for step in (10, 20):
        (run.checkpoints.directory / f"step_{step:08d}").mkdir(parents=True)

    def found() -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((tmp_path / "status.json").read_text())
        assert abs(datetime.fromisoformat(facts.pop("time")) - datetime.now(timezone.utc)) < timedelta(
            hours=1
        )
        return facts

    same = {"step": 20, "host": socket.gethostname(), "pid": os.getpid()}
    errors = (Interrupted, TrainingStopped, UserError, ZeroDivisionError)
    with contextlib.suppress(*errors), StopRequest() as stop, Status(run, stop, requeue=False):
        assert found() == {"state": "running", "reason": "", **same}
        body()
    assert found() == {"state": state, "reason": reason, **same}


@pytest.mark.fault(17)
@pytest.mark.parametrize(
    ("requeue", "number", "calls"),
    [(True, signal.SIGUSR1, 1), (False, signal.SIGUSR1, 0), (True, signal.SIGTERM, 0), (True, None, 0)],
)
def test_a_job_is_queued_again_once_and_only_when_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requeue: bool, number: int | None, calls: int
) -> None:
    called: list[str] = []
    monkeypatch.setattr(status, "requeue_job", lambda: called.append("requeue"))
    stop = StopRequest()
    try:
        with stop, Status(RunDirectory(tmp_path), stop, requeue):
            if number is not None:
                os.kill(os.getpid(), number)
    except Interrupted:
        stop.before_leaving()  # the time is over before the process has ended
    assert len(called) == calls
    assert json.loads((tmp_path / "status.json").read_text())["state"] == (
        "finished" if number is None else "preempted"
    )


@pytest.mark.fault(17)
def test_a_signal_after_the_end_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(status, "requeue_job", lambda: called.append("requeue"))
    with contextlib.suppress(Interrupted), StopRequest() as stop:
        with Status(RunDirectory(tmp_path), stop, requeue=True):
            pass
        os.kill(os.getpid(), signal.SIGUSR1)
    stop.before_leaving()  # the process is stuck on its way out
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "finished"
    assert not called


def test_a_finished_run_stays_finished_where_a_new_start_begins_nothing(tmp_path: Path) -> None:
    run, stop = RunDirectory(tmp_path), StopRequest()
    write_json(run.results_file, {})
    (run.checkpoints.directory / "step_00000010").mkdir(parents=True)
    for ending in (failing(UserError("no data")), failing(TrainingStopped("the disk is full"))):
        with contextlib.suppress(NmtError), Status(run, stop, requeue=False):
            ending()
        found = json.loads((tmp_path / "status.json").read_text())
        assert (found["state"], found["reason"]) == ("finished", "")
    for lost in (run.checkpoints.directory / "step_00000010", run.results_file):  # a run that is made anew
        lost.rename(tmp_path / f"lost-{lost.name}")
        with contextlib.suppress(NmtError), Status(run, stop, requeue=False):
            failing(UserError("no data"))()
        assert json.loads((tmp_path / "status.json").read_text())["state"] == "failed"
        (tmp_path / f"lost-{lost.name}").rename(lost)


@pytest.mark.fault(3)
def test_a_run_that_was_killed_after_its_results_is_finished(tmp_path: Path) -> None:
    made = Status(RunDirectory(tmp_path), StopRequest(), requeue=False)
    made.repair()
    assert not (tmp_path / "status.json").exists()  # of an earlier version
    made.__enter__()
    made.repair()
    before = (tmp_path / "status.json").read_text()
    assert json.loads(before)["state"] == "finished"
    made.repair()
    assert (tmp_path / "status.json").read_text() == before
