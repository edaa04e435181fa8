"""One attempt at a trial: its work, in this process or in several that compute together, and its outcome.

Several are forks of this process, told their ranks as torchrun would tell them. This process keeps the store
where they meet, hands on the signals that reach it, and ends what is left of them when one was killed.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from nmt.errors import Log, TrainingStopped, in_one_line
from nmt.signals import SIGNALS, when_orphaned
from nmt.sweeps.records import infinite

if TYPE_CHECKING:
    from nmt.distributed import Meeting

Report = Callable[[Callable[[], int], Log], int]
"""A function that calls its first argument, tells the second of an error, and returns the exit code."""
Work = Callable[[], dict[str, Any]]
"""The work of a trial, which returns its scores by split."""

ORPHAN_SECONDS = 300.0
"""Time that a process has to save and end when the one that started it is gone."""
LOST_SECONDS = 60.0
"""Time that the processes of a trial have to end by themselves when one of them was killed."""
POLL_SECONDS = 1.0
MAX_TOLD = 500
"""Most characters of a reason that the table shows."""


@dataclass
class Outcome:
    """The end of one attempt at a trial."""

    results: dict[str, Any] | None = None
    """What the verb returned; None: the attempt has failed."""
    reason: str = ""
    """Why it has failed, in one line."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    gpu_seconds: float = 0.0


Make = Callable[[Callable[[Outcome], None]], int]
"""What a process does for an attempt, given a function that tells the outcome; it returns the exit code."""


class Receiver(Protocol):
    """What signals are passed on to."""

    def signal(self, number: int, name: str | None = None) -> None:
        """Hand a signal to the process of one name, or to all."""


class Signals:
    """The signals that end this process, and whom they are passed on to; a context manager."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.receiver: Receiver | None = None

    def __enter__(self) -> Signals:
        self._previous = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: object) -> None:
        self.first = self.first or signal.Signals(number)
        if self.receiver is not None:
            self.receiver.signal(number)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals back in the block, so that a new process misses none and gets none twice."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


class Child:
    """A fork of this process that makes an attempt and tells its outcome, in a process group of its own.

    It is started while `signals` are held.
    """

    def __init__(self, make: Make, signals: Signals):
        context = multiprocessing.get_context("fork")
        self._signals, self._pipe_is_open = signals, True
        self._pipe, told = context.Pipe(duplex=False)
        self._told, self._began = b"", time.monotonic()
        self._process = context.Process(target=self._run, args=(make, told))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        with contextlib.suppress(OSError):  # the child may be faster
            os.setpgid(self.pid, self.pid)
        told.close()

    @property
    def code(self) -> int:
        """The exit code of the process, which has ended; negative: the signal that killed it."""
        self._process.join()
        return self._process.exitcode or 0

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(self.pid, number)

    def outcome(self) -> Outcome:
        """Return what became of the process, which has ended."""
        code = self.code
        while self._pipe_is_open and self._pipe.poll():
            self._listen()
        self._pipe.close()
        outcome = Outcome(**json.loads(self._told)) if self._told else Outcome()
        outcome.seconds = time.monotonic() - self._began
        if code != 0:
            outcome.results = None
        if outcome.results is None and not (outcome.reason and code >= 0):
            outcome.reason = _end(code)
        return outcome

    def _listen(self) -> None:
        try:
            self._told = self._pipe.recv_bytes()
        except (EOFError, OSError):
            self._pipe_is_open = False

    def _run(self, make: Make, told: connection.Connection) -> None:
        with contextlib.suppress(OSError):  # the parent may be faster
            os.setpgid(0, 0)
        self._signals.__exit__()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        when_orphaned(_end_in_time)
        sys.exit(make(lambda outcome: told.send_bytes(json.dumps(vars(outcome)).encode(errors="replace"))))


AnyChild = TypeVar("AnyChild", bound=Child)


def ended(children: Sequence[AnyChild], seconds: float) -> list[AnyChild]:
    """Return the children that have ended, as soon as there is one, or after `seconds`."""
    limit = time.monotonic() + seconds
    while children:
        waiting = {child._process.sentinel: child for child in children}
        pipes = {child._pipe: child for child in children if child._pipe_is_open}
        ready = connection.wait([*waiting, *pipes], max(0.0, limit - time.monotonic()))
        for pipe, child in pipes.items():
            if pipe in ready:
                child._listen()
        done = [child for sentinel, child in waiting.items() if sentinel in ready]
        if done or time.monotonic() >= limit:
            return done
    return []


def attempt(work: Work, report: Report, processes: int = 1) -> tuple[int, Outcome]:
    """Do the work of a trial, in this process or in several; return the exit code, and the outcome."""
    began = time.monotonic()
    code, outcome = _together(work, report, processes) if processes > 1 else _alone(work, report, _print)
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    outcome.cpu_seconds = round(sum(usage.ru_utime + usage.ru_stime for usage in usages), 1)
    outcome.seconds = round(time.monotonic() - began, 1)
    return code, outcome


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _alone(work: Work, report: Report, write: Log) -> tuple[int, Outcome]:
    """Do the work of a trial in this process, and `write` why it fails."""
    outcome, began = Outcome(), time.monotonic()

    def call() -> int:
        outcome.results = _finite(work())
        return 0

    def log(text: str) -> None:
        write(text)
        outcome.reason = in_one_line(text.removeprefix("error: "))[:MAX_TOLD]

    try:
        code = report(call, log)
    except Exception as error:
        from nmt.distributed import explain

        code, text = explain(error)
        log(text)
        if code == 1:
            outcome.reason = in_one_line(f"{type(error).__name__}: {error}")[:MAX_TOLD]
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        outcome.gpu_seconds = round(time.monotonic() - began, 1)
    return code, outcome


class _Ranks:
    """The processes of a trial, by rank."""

    def __init__(self) -> None:
        self.children: list[Child] = []

    def signal(self, number: int, name: str | None = None) -> None:
        """Hand a signal to all of them."""
        for child in self.children:
            child.signal(number)


def _together(work: Work, report: Report, processes: int) -> tuple[int, Outcome]:
    """Do the work of a trial in several processes that compute together."""
    from nmt.distributed import Meeting

    ranks, meeting = _Ranks(), Meeting(processes)
    with Signals() as signals:
        with signals.held():
            for rank in range(processes):
                ranks.children.append(Child(_as_rank(work, report, meeting, rank), signals))
            signals.receiver = ranks
        with meeting:
            in_turn = _wait(ranks, signals, meeting)
            said = meeting.said()
    outcomes = {child: child.outcome() for child in in_turn}
    outcome = outcomes[ranks.children[0]]
    outcome.gpu_seconds = sum(one.gpu_seconds for one in outcomes.values())
    first = next((child for child in in_turn if child.code), None)
    if first is None:
        return 0, outcome
    told = [one.reason for child, one in outcomes.items() if one.reason not in ("", _end(child.code))]
    reasons = [*told, said[:MAX_TOLD], _end(first.code)] if first.code > 0 else [_end(first.code)]
    outcome.results, outcome.reason = None, next(filter(None, reasons))
    return (first.code if first.code > 0 else TrainingStopped.exit_code), outcome


def _wait(ranks: _Ranks, signals: Signals, meeting: Meeting) -> list[Child]:
    """Return the processes of a trial in the order in which they have ended."""
    in_turn, limit = list[Child](), float("inf")
    while running := [child for child in ranks.children if child not in in_turn]:
        done = ended(running, POLL_SECONDS)
        in_turn += done
        if any(child.code < 0 for child in done):  # killed, before it could say anything
            meeting.end(TrainingStopped.exit_code)
        if any(child.code for child in in_turn):
            limit = min(limit, time.monotonic() + (ORPHAN_SECONDS if signals.first else LOST_SECONDS))
        if time.monotonic() > limit:
            ranks.signal(signal.SIGKILL)
    return in_turn


def _as_rank(work: Work, report: Report, meeting: Meeting, rank: int) -> Make:
    """Return the attempt that one of several processes makes."""

    def make(tell: Callable[[Outcome], None]) -> int:
        from nmt.distributed import Launch

        meeting.join(rank)
        with Launch() as launch:
            code, outcome = _alone(work, report, launch.log)
            if not launch.has_logged:
                outcome.reason = ""
            tell(outcome)
            return launch.end(code)

    return make


def _finite(results: dict[str, Any]) -> dict[str, Any]:
    """Return the results of a trial; raise `TrainingStopped` for a score that is not finite."""
    if wrong := infinite(results):
        raise TrainingStopped(wrong)
    return results


def _end(code: int) -> str:
    """Return how a process ended that said nothing, given its exit code or, negative, its signal."""
    if code >= 0:
        return f"exit code {code}"
    memory = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{memory}"


def _end_in_time() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
