"""Trials of a sweep, each in a process of its own, so that whatever ends one of them ends no other.

A trial is a fork of this process, which has imported torch and composed configs, but computed nothing: no
thread of OpenMP and no CUDA context exists that a fork would break, and nothing is imported a second time.
A trial leads a process group of its own: Ctrl-C reaches this process alone, which passes each signal on once.

After a signal no further trial starts, and the running one saves and ends. When this process is killed, the
trial is asked to end as by SIGTERM, and killed when it does not.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from nmt.decoding.metrics import labelled_scores
from nmt.errors import Interrupted, Log, TrainingStopped, visible

if TYPE_CHECKING:
    from nmt.config.compose import Composed

Action = Callable[["Composed"], dict[str, Any]]
"""A function that runs a trial and returns its scores by split."""
Report = Callable[[Callable[[], int], Log], int]
"""A function that calls its first argument, tells the second of an error, and returns the exit code."""

FAILED = 3
"""Exit code of a sweep with failed trials."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
ORPHAN_SECONDS = 300.0
"""Time that a trial has to save and end when the process that started it is gone."""
MAX_TOLD = 500
"""Most characters of a reason that the table shows."""


@dataclass
class Outcome:
    """The row of a trial in the table."""

    name: str
    status: str
    """done, failed or stopped."""
    text: str
    """The scores, or the reason why there are none."""


def sweep(trials: Sequence[Composed], action: Action, report: Report) -> int:
    """Run every trial whatever happens to the others, print a table and return the exit code.

    Raises:
        Interrupted: a signal has arrived; the table has the trials that had begun.
    """
    outcomes = []
    with _Signals() as signals:
        for number, trial in enumerate(trials, start=1):
            if signals.first is None:
                print(f"[{number}/{len(trials)}] {trial.name}", file=sys.stderr, flush=True)
                outcomes.append(_Trial(trial, action, report, signals).outcome())
    rows = [Outcome("trial", "status", "score"), *outcomes]
    width = max(len(row.name) for row in rows)
    for row in rows:
        print(f"{row.name:<{width}}  {row.status:<6}  {visible(row.text)}")
    if signals.first is not None:
        num_done = sum(outcome.status == "done" for outcome in outcomes)
        raise Interrupted(
            signals.first,
            f"stopped by {signals.first.name}; {num_done} of {len(trials)} trials are done; "
            "the same command goes on from there",
        )
    return FAILED if any(outcome.status == "failed" for outcome in outcomes) else 0


def score(results: dict[str, Any]) -> str:
    """Return the scores of a trial as text: on the test split if it was scored, else validation, train.

    Raises:
        TrainingStopped: a score is not finite.
    """
    scored = [results[split] for split in ("test", "validation", "train") if split in results]
    if not scored:
        return "-"
    for name, value in scored[0].items():
        if not math.isfinite(value):
            raise TrainingStopped(f"the score {name} is {value}")
    return "  ".join(labelled_scores(scored[0]))


class _Signals:
    """The signals that end a sweep, and the trials that they are passed on to; a context manager."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.running: list[_Trial] = []

    def __enter__(self) -> _Signals:
        self._previous = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: object) -> None:
        self.first = self.first or signal.Signals(number)
        for trial in self.running:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(trial.pid, number)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals back in the block, so that a new trial misses none and gets none twice."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


class _Trial:
    """A process that runs one trial, from its start."""

    def __init__(self, trial: Composed, action: Action, report: Report, signals: _Signals):
        context = multiprocessing.get_context("fork")
        self.name, self._signals = trial.name, signals
        self._told, told = context.Pipe(duplex=False)
        self._process = context.Process(target=self._run, args=(trial, action, report, told))
        with signals.held():
            self._process.start()
            assert self._process.pid is not None
            self.pid = self._process.pid
            with contextlib.suppress(OSError):  # the trial may be faster
                os.setpgid(self.pid, self.pid)
            signals.running.append(self)
        told.close()

    def outcome(self) -> Outcome:
        """Wait for the end of the process, and return what became of it."""
        self._process.join()
        self._signals.running.remove(self)
        code, told = self._process.exitcode or 0, b""
        with self._told, contextlib.suppress(EOFError):
            told = self._told.recv_bytes() if self._told.poll() else b""
        if code == 0 and told:
            return Outcome(self.name, "done", told.decode())
        reason = told.decode() if told and code > 0 else _end(code)
        return Outcome(self.name, "failed" if self._signals.first is None else "stopped", reason)

    def _run(self, trial: Composed, action: Action, report: Report, told: Connection) -> None:
        """Run the trial, in its own process; tell the sweep the score, or the first line of the reason."""
        with contextlib.suppress(OSError):  # the sweep may be faster
            os.setpgid(0, 0)
        self._signals.__exit__()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        threading.Thread(target=_end_with_parent, daemon=True).start()

        def tell(text: str) -> None:
            told.send_bytes(text.partition("\n")[0][:MAX_TOLD].encode())

        def work() -> int:
            tell(score(action(trial)))
            return 0

        def log(text: str) -> None:
            print(text, file=sys.stderr)
            tell(text.removeprefix("error: "))

        try:
            code = report(work, log)
        except Exception as error:
            tell(f"{type(error).__name__}: {error}")
            raise
        sys.exit(code)


def _end(code: int) -> str:
    """Return how a process ended that said nothing, given its exit code or, negative, its signal."""
    if code >= 0:
        return f"exit code {code}"
    memory = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{memory}"


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
