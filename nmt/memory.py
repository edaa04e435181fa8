"""Memory that is exhausted: how that is recognised, so that a smaller piece of work can be tried.

Linux may also kill a process that takes more memory of the machine than there is, which no program can catch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

import torch

from nmt.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

WORDS = ("can't allocate memory", "out of memory", "ALLOC_FAILED", "std::bad_alloc")
"""Texts of the errors by which torch and its libraries report that memory is exhausted."""


class Attempt(contextlib.AbstractContextManager["Attempt"]):
    """A block that may run out of memory: it then ends early, and `failed` is True.

    The error is dropped, because its traceback keeps the tensors of the block alive.
    """

    failed = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool:
        self.failed = error is not None and is_out_of_memory(error)
        return self.failed


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` says that memory is exhausted, be it of the device or of the machine."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in WORDS)


def release() -> None:
    """Return what a failed attempt has left in the cache of torch to the GPU."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def in_halves(
    work: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item], way_out: str
) -> list[Result]:
    """Return what `work` makes of `items`, one by one; where all need too much memory, half by half.

    Raises:
        UserError: memory is exhausted by a single item; ends with the `way_out`.
    """
    with Attempt():
        return work(items)
    release()
    if len(items) == 1:
        raise UserError(f"memory is exhausted by a single line; {way_out}")
    half = len(items) // 2
    return [*in_halves(work, items[:half], way_out), *in_halves(work, items[half:], way_out)]
