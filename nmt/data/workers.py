"""Processes that work through a corpus together: the same job for each of its pieces, results in order.

Whoever may use several says so once, with `several_processes`; whatever works through many pieces, and can
hand them out, calls `worked`. Pieces, jobs and what they return are unknown here.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from nmt.errors import TrainingStopped
from nmt.signals import when_orphaned, without_interrupt

T = TypeVar("T")
R = TypeVar("R")

WAITING = 2
"""Pieces that wait for a worker, so that none has to wait for a piece."""

_NUMBER: ContextVar[int] = ContextVar("number", default=1)
_JOB: list[Callable[[Any], Any]] = []
"""The job of this worker."""


@contextmanager
def several_processes(number: int) -> Iterator[None]:
    """Let `worked` use so many processes in the block."""
    token = _NUMBER.set(number)
    try:
        yield
    finally:
        _NUMBER.reset(token)


def are_several() -> bool:
    """Return whether `worked` may use several processes here."""
    return _NUMBER.get() > 1


@contextmanager
def worked(
    pieces: Iterable[T], job: Callable[[T], R], start: Callable[[], Callable[[T], R]], done: str
) -> Iterator[Iterator[tuple[T, R]]]:
    """Yield an iterator over the pieces, in order, each with what its job returned; end all with the block.

    This process works alone where no others are allowed, or there is but one piece.

    Args:
        pieces: What is worked on; only a few at a time are in memory.
        job: What this process does with a piece.
        start: A function that another process is given, and that returns its job.
        done: What an error says of the pieces that were done, such as "what is encoded is kept".

    Raises:
        TrainingStopped: a process was killed.
    """
    rest = iter(pieces)
    first = list(itertools.islice(rest, 2))
    pieces, number = itertools.chain(first, rest), _NUMBER.get()
    if number <= 1 or len(first) < 2:
        yield ((piece, job(piece)) for piece in pieces)
        return
    pool = ProcessPoolExecutor(number, multiprocessing.get_context("spawn"), _begin, (start,))
    before = set(multiprocessing.active_children())
    try:
        yield _in_order(pool, pieces, number + WAITING)
    except BrokenProcessPool:
        raise TrainingStopped(
            f"a worker has ended, perhaps for lack of memory; {done}, and the same command goes on; fewer "
            "prepare.workers=... need less memory"
        ) from None
    finally:
        for process in {*multiprocessing.active_children()} - before:
            process.kill()  # perhaps in the middle of a piece
        pool.shutdown()


def _in_order(pool: ProcessPoolExecutor, pieces: Iterable[T], most: int) -> Iterator[tuple[T, Any]]:
    """Yield pieces with their results, of which at most so many are not known."""
    pending = deque[tuple[T, Future[Any]]]()
    for piece in pieces:
        with without_interrupt():
            pending.append((piece, pool.submit(_work, piece)))
        while len(pending) >= most:
            done, future = pending.popleft()
            yield done, future.result()
    for done, future in pending:
        yield done, future.result()


def _begin(start: Callable[[], Callable[[Any], Any]]) -> None:
    """Set this worker up; it ends when the parent process ends."""
    when_orphaned(lambda: os._exit(1))
    _JOB.append(start())


def _work(piece: Any) -> Any:
    return _JOB[0](piece)
