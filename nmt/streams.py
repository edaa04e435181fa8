"""The standard streams of the process: what fails on them is one readable error, and never a traceback.

A stream that was closed when the process started (`<&-`, `>&-`) gets its file descriptor back, so that no
file of a run is opened in its place; to read or write it is an error. What cannot be shown on stderr is
dropped: no training ends for that.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

from nmt.errors import UserError

STDIN, STDOUT, STDERR = 0, 1, 2


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Replace `sys.stdin`, `sys.stdout` and `sys.stderr`, for the time that the process has left to live."""
    # stdin and stdout are opened the wrong way around: to use them fails as if they were closed.
    for descriptor, flags in ((STDIN, os.O_WRONLY), (STDOUT, os.O_RDONLY), (STDERR, os.O_RDWR)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, flags)  # gets the lowest free descriptor, which is this one
    sys.stdin = _text(sys.stdin, io.BufferedReader(_Input(STDIN, "r", closefd=False)))
    sys.stdout = _text(sys.stdout, io.BufferedWriter(_Output(STDOUT, "w", closefd=False)))
    sys.stderr = _text(sys.stderr, io.BufferedWriter(_Remarks(STDERR, "w", closefd=False)))
    yield
    with contextlib.suppress(UserError, BrokenPipeError):  # what an error has left in the buffer
        sys.stdout.flush()


def _text(before: Any, binary: Any) -> io.TextIOWrapper:
    """Return a text stream over `binary` like the one that Python opened, if Python did."""
    return io.TextIOWrapper(
        binary,
        encoding=getattr(before, "encoding", "utf-8"),
        errors=getattr(before, "errors", "backslashreplace"),
        line_buffering=getattr(before, "line_buffering", True),
    )


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # the reader wants no more, and needs no message
        raise
    except OSError as error:
        reason = "it is closed" if error.errno == errno.EBADF else error.strerror
        raise UserError(f"{what}: {reason}") from error


class _Input(io.FileIO):
    """Standard input."""

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer`; raise `UserError` when that fails."""
        with _told("standard input cannot be read"):
            return super().readinto(buffer)


class _Output(io.FileIO):
    """Standard output, which is lost after its first error: the buffers above would try again and again."""

    is_lost = False

    def write(self, data: Any) -> int:
        """Write `data`; raise `UserError` or `BrokenPipeError` when that fails for the first time."""
        if self.is_lost:
            return len(data)
        self.is_lost = True
        with _told("standard output cannot be written"):
            written = super().write(data)
        self.is_lost = False
        return written


class _Remarks(_Output):
    """Standard error."""

    def write(self, data: Any) -> int:
        """Write `data`, or drop it."""
        with contextlib.suppress(UserError, BrokenPipeError):
            return super().write(data)
        return len(data)
