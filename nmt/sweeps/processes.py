"""Trials on this machine, each in a process of its own, so that whatever ends one of them ends no other.

A trial is a fork of this process, which has imported torch and composed configs, but computed nothing: no
thread of OpenMP and no CUDA context exists that a fork would break, and nothing is imported a second time.
A trial leads a process group of its own: Ctrl-C reaches this process alone, which passes each signal on once.
Several at a time share the CPU cores, have GPUs of their own where there are several, and a log each.

After a signal no further trial starts, and the running ones save and end. When this process is killed, a
trial is asked to end as by SIGTERM, and killed when it does not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from omegaconf import OmegaConf

from nmt.sweeps.attempts import Child, Make, Outcome, Report, Signals, attempt, ended

if TYPE_CHECKING:
    from nmt.config.composed import Composed

Action = Callable[["Composed"], dict[str, Any]]
"""A function that runs a trial and returns its scores by split."""


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


class Processes:
    """Trials in forks of this process, `slots` at a time, of `processes` each."""

    def __init__(
        self, slots: int, processes: int, action: Action, report: Report, signals: Signals, logs: Path
    ):
        self.slots, self._processes, self._logs = slots, processes, logs if slots > 1 else None
        self._action, self._report, self._signals = action, report, signals
        self._trials: dict[str, _Trial] = {}
        self._gpus = _gpus() if slots > 1 else []

    def start(self, trials: Sequence[Composed]) -> None:
        """Fork a process for each trial, until a signal has arrived."""
        for trial in trials:
            taken = {one.slot for one in self._trials.values()}
            slot = min(set(range(self.slots)) - taken)
            gpus = [] if _names_gpu(trial) else self._gpus
            share = Share.of(slot, self.slots, gpus, self._processes) if self.slots > 1 else Share()
            with self._signals.held():
                if self._signals.first is not None:
                    return
                self._trials[trial.name] = _Trial(slot, self._making(trial, share), self._signals)

    def running(self) -> list[str]:
        """Return the names of the trials that run."""
        return list(self._trials)

    def ended(self, seconds: float) -> list[tuple[str, Outcome]]:
        """Return the trials that have ended, as soon as there is one, or after `seconds`."""
        done = ended(list(self._trials.values()), seconds)
        names = [name for name, one in self._trials.items() if one in done]
        return [(name, self._trials.pop(name).outcome()) for name in names]

    def signal(self, number: int, name: str | None = None) -> None:
        """Hand a signal to one trial, or to all."""
        for one, trial in list(self._trials.items()):
            if name in (None, one):
                trial.signal(number)

    def _making(self, trial: Composed, share: Share) -> Make:
        """Return what the process of a trial does."""
        log = self._logs / f"{trial.name}.log" if self._logs else None

        def make(tell: Callable[[Outcome], None]) -> int:
            if log is not None:
                _redirect(log)
            share.take()
            code, outcome = attempt(lambda: self._action(trial), self._report, self._processes)
            tell(outcome)
            return code

        return make


class _Trial(Child):
    """The process of a trial, and the part of the machine that it has."""

    def __init__(self, slot: int, make: Make, signals: Signals):
        self.slot = slot
        super().__init__(make, signals)


@dataclass
class Share:
    """The part of the machine that one of several trials has; all of it, if empty."""

    cores: list[int] = field(default_factory=list)
    gpus: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, slot: int, slots: int, gpus: Sequence[str], processes: int = 1) -> Share:
        """Return the part of one of `slots` trials of as many `processes`, which have a GPU each.

        Trials share a core or GPUs where there are too few.
        """
        cores = sorted(os.sched_getaffinity(0))
        own = cores[slot::slots] or [cores[slot % len(cores)]]
        first = slot % max(len(gpus) // processes, 1) * processes
        return cls(own, [*gpus[first : first + processes]])

    def take(self) -> None:
        """Keep this process to its part of the machine."""
        if self.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus)
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
