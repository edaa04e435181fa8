"""Progress of long work, told to whoever listens in the same thread; nothing is shown here.

Whatever works through many items wraps them in `told`; whoever shows progress calls `heard_by`. Without a
listener nothing is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Work(NamedTuple):
    """How far a piece of work is."""

    name: str
    """Such as "translating"."""
    unit: str
    """What is counted, such as "lines"."""
    done: int
    total: int | None
    """None: not known."""
    share: float | None
    """Share of the time that is used up, as far as it can be told; None: not known."""


Listener = Callable[[Work | None], None]
"""A function that is called with the progress of the work, and with None when the work has ended."""

_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Tell `listener` of the work in the block."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def told(
    items: Iterable[T],
    name: str,
    unit: str,
    size: Callable[[T], int] = len,  # type: ignore[assignment]
    total: int | None = None,
) -> Iterator[T]:
    """Yield the items, and tell after each how many units are done.

    Args:
        items: A list whose items take about the same time each, such as batches, or any stream.
        name: What is done, such as "translating".
        unit: What is counted.
        size: Number of units in an item.
        total: Units in all items; not needed for a list.
    """
    listener = _LISTENER.get()
    if listener is None:
        yield from items
        return
    number = len(items) if isinstance(items, list) else None
    if isinstance(items, list):
        total = sum(map(size, items))
    done = 0
    try:
        for index, item in enumerate(items):
            share = index / number if number else done / total if total else None
            listener(Work(name, unit, done, total, share))
            yield item
            done += size(item)
    finally:
        listener(None)
