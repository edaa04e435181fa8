"""Requests to stop: one flag for SIGINT, SIGTERM and SIGUSR1, in every phase of a command.

Where nothing is to be saved, a signal ends the command at once and in good order; in a `deferred` block the
signal is noted, and the block grants it when everything is saved. A thread watches over that: a second
signal, or the grace limit, ends the process whatever it does, in C++ or waiting for another process. What was
saved before is intact then, because everything that is written appears whole.

Slurm sends SIGUSR1 ahead of a time limit (`#SBATCH --signal`), and `requeue_job` queues the job again.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from types import FrameType
from typing import TypeVar

from nmt.errors import Interrupted, warn

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
REPEATED_SECONDS = 1.0
"""Time in which a further signal is the same request: timeout(1) sends SIGTERM to the process and to its
group, and torchrun hands on what Slurm has sent to all processes."""
AT_ONCE_SECONDS = 3.0
"""Time to end where nothing is to be saved."""
POLL_SECONDS = 0.2
"""Time between two looks at what the main thread does."""
LAST_SECONDS = 5.0
"""Longest time that an end without grace may take to say so."""


class StopRequest:
    """A request to stop, made by a signal; a context manager of the main thread.

    Outside `deferred` a signal raises `Interrupted` in the main thread. `before_leaving` is called, in
    another thread, before the process ends by a second signal or for its `grace_seconds`. The handlers that
    were there before come back at the end.
    """

    def __init__(self, grace_seconds: float = math.inf):
        self.grace_seconds = grace_seconds
        self.signal: signal.Signals | None = None
        self.before_leaving: Callable[[], None] = lambda: None
        self._raises = True
        self._deferred = False
        self._deferred_until = 0.0

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return self.signal is not None

    def interruption(self, done: str = "") -> Interrupted:
        """Return the error for the signal that has arrived; `done` says how far the command came."""
        assert self.signal is not None
        again = "goes on from there" if done else "takes it up again"
        return Interrupted(self.signal, f"stopped by {self.signal.name}{done}; the same command {again}")

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Only note a signal during the block, which saves what has to be saved; then raise `Interrupted`."""
        self._raises, self._deferred = False, True
        try:
            yield
        finally:
            self._raises, self._deferred, self._deferred_until = True, False, monotonic()
        if self.requested:
            raise self.interruption()

    def only_note(self) -> None:
        """Only note a signal from now on, as in `deferred`: an error ends the command, and in good order."""
        self._raises, self._deferred = False, True

    def unless_stopped(self, action: Callable[[], T]) -> T | None:
        """Return the result of `action`, or None when a signal has arrived, before or meanwhile."""
        raises, self._raises = self._raises, True
        try:
            return None if self.requested else action()
        except Interrupted:
            return None
        finally:
            self._raises = raises

    def __enter__(self) -> StopRequest:
        reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._previous = {number: signal.signal(number, self._receive) for number in SIGNALS}
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        _ACTIVE.append(self)
        threading.Thread(target=self._watch, args=[reader], daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        _ACTIVE.remove(self)
        signal.set_wakeup_fd(self._previous_fd)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._writer.close()  # ends the thread

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.signal is None:
            self.signal = signal.Signals(number)
            if self._raises:
                raise self.interruption()

    def _watch(self, reader: socket.socket) -> None:
        """Wait for a signal; then end the process at a second one, or when its time is over.

        The interpreter writes the number of each signal to the socket the moment the signal arrives, also
        while the main thread is in C++ and runs no handler.
        """
        with reader, contextlib.suppress(EOFError):
            number, first = _next(reader), monotonic()
            while (left := self._end(first) - monotonic()) > 0:
                if _next(reader, min(left, POLL_SECONDS)) and monotonic() - first > REPEATED_SECONDS:
                    break
            self._leave(number)

    def _end(self, first: float) -> float:
        """Return when the process ends at the latest that received its first signal at `first`."""
        last = first + self.grace_seconds
        return last if self._deferred else min(last, max(first, self._deferred_until) + AT_ONCE_SECONDS)

    def _leave(self, number: int) -> None:
        self.signal = signal.Signals(number)  # the handler may still wait for the main thread
        thread = threading.Thread(target=self._last_words, daemon=True)
        thread.start()
        thread.join(LAST_SECONDS)  # what it writes to may be blocked
        os._exit(128 + number)

    def _last_words(self) -> None:
        assert self.signal is not None
        self.before_leaving()
        text = f"stopped by {self.signal.name} at once; what was saved before is intact"
        print(text, file=sys.stderr, flush=True)


def _next(reader: socket.socket, seconds: float | None = None) -> int:
    """Return the number of the next signal, or 0 after `seconds`; raise `EOFError` when there is no more."""
    reader.settimeout(seconds)
    while True:
        try:
            received = reader.recv(1)
        except TimeoutError:
            return 0
        if not received:
            raise EOFError
        if received[0] in SIGNALS:  # the interpreter writes the numbers of others, too
            return received[0]


_ACTIVE: list[StopRequest] = []


def _hold() -> None:
    """Let no signal reach a fork of this process before the fork has handlers of its own."""
    if _ACTIVE:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _release() -> None:
    if _ACTIVE:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _forget() -> None:
    """Let signals end this fork as they end any process, without a word to the thread of its parent."""
    if _ACTIVE:
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
    _release()


os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_forget)


@contextlib.contextmanager
def without_interrupt() -> Iterator[None]:
    """Let the processes that start in the block ignore Ctrl-C, which reaches every process of a terminal.

    They inherit that; the process that starts them answers.
    """
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def when_orphaned(end: Callable[[], object]) -> None:
    """Call `end`, in a thread, when the process that started this one with `multiprocessing` is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        end()

    threading.Thread(target=wait, daemon=True).start()


def requeue_job() -> None:
    """Ask Slurm to queue the job of this process again; warn when it does not."""
    job = os.environ.get("SLURM_JOB_ID", "")
    if not (job.isascii() and job.isdigit()):
        warn(f"runtime.requeue=true: this is no job of Slurm, as SLURM_JOB_ID is {job!r}; nothing is queued")
        return
    try:
        done = subprocess.run(
            ["scontrol", "requeue", job], capture_output=True, text=True, timeout=LAST_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        warn(f"scontrol requeue {job} failed: {error}")
        return
    if done.returncode:
        warn(f"scontrol requeue {job} failed: {done.stderr.strip()}")
