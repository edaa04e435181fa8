"""Trials on this machine, each in a process of its own, so that whatever ends one of them ends no other.

A trial is a fork of this process, which has imported torch and composed configs, but computed nothing: no
thread of OpenMP and no CUDA context exists that a fork would break, and nothing is imported a second time.
A trial leads a process group of its own: Ctrl-C reaches this process alone, which passes each signal on once.
Several at a time share the CPU cores, have a GPU each where there are several, and write to a log each.

After a signal no further trial starts, and the running ones save and end. When this process is killed, a
trial is asked to end as by SIGTERM, and killed when it does not.
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
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from omegaconf import OmegaConf

from nmt.errors import Log, TrainingStopped, in_one_line
from nmt.signals import SIGNALS, when_orphaned
from nmt.sweeps.records import infinite

if TYPE_CHECKING:
    from nmt.config.composed import Composed

Action = Callable[["Composed"], dict[str, Any]]
"""A function that runs a trial and returns its scores by split."""
Report = Callable[[Callable[[], int], Log], int]
"""A function that calls its first argument, tells the second of an error, and returns the exit code."""

ORPHAN_SECONDS = 300.0
"""Time that a trial has to save and end when the process that started it is gone."""
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


class TrialRunner(Protocol):
    """A place where trials run."""

    slots: int
    """Trials that run at a time."""

    def start(self, trials: Sequence[Composed]) -> None:
        """Start trials, at most as many as there are free slots."""

    def running(self) -> list[str]:
        """Return the names of the trials that have been started and have not ended."""

    def ended(self, seconds: float) -> list[tuple[str, Outcome]]:
        """Return the trials that have ended, as soon as there is one, or after `seconds`."""

    def signal(self, number: int, name: str | None = None) -> None:
        """Hand a signal to one trial, or to all."""


class Signals:
    """The signals that end a sweep, and the trials that they are passed on to; a context manager."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.runner: TrialRunner | None = None

    def __enter__(self) -> Signals:
        self._previous = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: object) -> None:
        self.first = self.first or signal.Signals(number)
        if self.runner is not None:
            self.runner.signal(number)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals back in the block, so that a new trial misses none and gets none twice."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


class Processes:
    """Trials in forks of this process, `slots` at a time."""

    def __init__(self, slots: int, action: Action, report: Report, signals: Signals, logs: Path):
        self.slots, self._logs = slots, logs if slots > 1 else None
        self._action, self._report, self._signals = action, report, signals
        self._trials: dict[str, _Trial] = {}
        self._gpus = _gpus() if slots > 1 else []

    def start(self, trials: Sequence[Composed]) -> None:
        """Fork a process for each trial, until a signal has arrived."""
        for trial in trials:
            taken = {one.slot for one in self._trials.values()}
            slot = min(set(range(self.slots)) - taken)
            gpus = [] if _names_gpu(trial) else self._gpus
            share = Share.of(slot, self.slots, gpus) if self.slots > 1 else Share()
            log = self._logs / f"{trial.name}.log" if self._logs else None
            with self._signals.held():
                if self._signals.first is not None:
                    return
                started = _Trial(trial, slot, self._action, self._report, self._signals, share, log)
                self._trials[trial.name] = started

    def running(self) -> list[str]:
        """Return the names of the trials that run."""
        return list(self._trials)

    def ended(self, seconds: float) -> list[tuple[str, Outcome]]:
        """Return the trials that have ended, as soon as there is one, or after `seconds`."""
        limit = time.monotonic() + seconds
        while self._trials:
            waiting = {one.sentinel: one for one in self._trials.values()}
            pipes = {one.pipe: one for one in self._trials.values() if not one.is_silent}
            ready = connection.wait([*waiting, *pipes], max(0.0, limit - time.monotonic()))
            for one in (pipes[pipe] for pipe in pipes if pipe in ready):
                one.listen()
            done = [one for sentinel, one in waiting.items() if sentinel in ready]
            for one in done:
                del self._trials[one.name]
            if done or time.monotonic() >= limit:
                return [(one.name, one.outcome()) for one in done]
        return []

    def signal(self, number: int, name: str | None = None) -> None:
        """Hand a signal to one trial, or to all."""
        for one in list(self._trials.values()):
            if name in (None, one.name):
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(one.pid, number)


@dataclass
class Share:
    """The part of the machine that one of several trials has; all of it, if empty."""

    cores: list[int] = field(default_factory=list)
    gpu: str = ""

    @classmethod
    def of(cls, slot: int, slots: int, gpus: Sequence[str]) -> Share:
        """Return the part of one of `slots` trials; trials share a core or a GPU where there are too few."""
        cores = sorted(os.sched_getaffinity(0))
        own = cores[slot::slots] or [cores[slot % len(cores)]]
        return cls(own, gpus[slot % len(gpus)] if gpus else "")

    def take(self) -> None:
        """Keep this process to its part of the machine."""
        if self.gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpu
        if self.cores:
            import torch

            os.sched_setaffinity(0, self.cores)
            threads = min(len(self.cores), torch.get_num_threads())
            os.environ["OMP_NUM_THREADS"] = str(threads)  # of processes that the trial starts
            torch.set_num_threads(threads)


def _names_gpu(trial: Composed) -> bool:
    """Return whether a trial says which GPU it is to have, such as cuda:1."""
    return ":" in str(OmegaConf.select(trial.cfg, "runtime.device"))


def _gpus() -> list[str]:
    """Return the GPUs that are visible to this process, which starts none of them."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    return [str(number) for number in range(torch.cuda.device_count())]


class _Trial:
    """A process that runs one trial, from its start."""

    def __init__(
        self,
        trial: Composed,
        slot: int,
        action: Action,
        report: Report,
        signals: Signals,
        share: Share,
        log: Path | None,
    ):
        context = multiprocessing.get_context("fork")
        self.name, self.slot, self._signals = trial.name, slot, signals
        self.pipe, told = context.Pipe(duplex=False)
        self._told, self.is_silent, self._began = b"", False, time.monotonic()
        self._process = context.Process(target=self._run, args=(trial, action, report, share, log, told))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        with contextlib.suppress(OSError):  # the trial may be faster
            os.setpgid(self.pid, self.pid)
        told.close()

    @property
    def sentinel(self) -> int:
        """A handle that is ready when the process has ended."""
        return self._process.sentinel

    def listen(self) -> None:
        """Take what the process tells."""
        try:
            self._told = self.pipe.recv_bytes()
        except (EOFError, OSError):
            self.is_silent = True

    def outcome(self) -> Outcome:
        """Return what became of the process, which has ended."""
        self._process.join()
        while not self.is_silent and self.pipe.poll():
            self.listen()
        self.pipe.close()
        outcome = Outcome(**json.loads(self._told)) if self._told else Outcome()
        outcome.seconds = time.monotonic() - self._began
        code = self._process.exitcode or 0
        if code != 0:
            outcome.results = None
        if outcome.results is None and not (outcome.reason and code >= 0):
            outcome.reason = _end(code)
        return outcome

    def _run(
        self,
        trial: Composed,
        action: Action,
        report: Report,
        share: Share,
        log: Path | None,
        told: Connection,
    ) -> None:
        """Run the trial, in its own process, and tell the sweep its outcome."""
        with contextlib.suppress(OSError):  # the sweep may be faster
            os.setpgid(0, 0)
        self._signals.__exit__()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        when_orphaned(_end_in_time)
        if log is not None:
            _redirect(log)
        share.take()
        code, outcome = attempt(lambda: action(trial), report)
        told.send_bytes(json.dumps(vars(outcome)).encode(errors="replace"))
        sys.exit(code)


def attempt(work: Callable[[], dict[str, Any]], report: Report) -> tuple[int, Outcome]:
    """Do the work of a trial in this process; return the exit code, and the outcome."""
    outcome, began = Outcome(), time.monotonic()

    def call() -> int:
        outcome.results = _finite(work())
        return 0

    def log(text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        outcome.reason = in_one_line(text.removeprefix("error: "))[:MAX_TOLD]

    try:
        code = report(call, log)
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code, outcome.reason = 1, in_one_line(f"{type(error).__name__}: {error}")[:MAX_TOLD]
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    outcome.cpu_seconds = round(sum(usage.ru_utime + usage.ru_stime for usage in usages), 1)
    outcome.seconds = round(time.monotonic() - began, 1)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        outcome.gpu_seconds = outcome.seconds
    return code, outcome


def _finite(results: dict[str, Any]) -> dict[str, Any]:
    """Return the results of a trial; raise `TrainingStopped` for a score that is not finite."""
    if wrong := infinite(results):
        raise TrainingStopped(wrong)
    return results


def _redirect(log: Path) -> None:
    """Send all that this process and its children print to the end of a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = (
        os.fdopen(number, "w", 1, "utf-8", "backslashreplace", closefd=False) for number in (1, 2)
    )


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
