"""The errors a user may meet, each with the exit code of the process that ends on it.

An error message is one readable text: the full config key or the file and line, the constraint, the actual
value and the way out. Anything else, but for `Interrupted`, is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import difflib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar

Log = Callable[[str], None]
"""A function that shows the user one remark: in the log of a training, or on standard error."""


class NmtError(Exception):
    """Base of the errors that are shown without a traceback."""

    exit_code = 1


class UserError(NmtError):
    """The config, the data or the run directory cannot be used as given, for one reason or several."""

    exit_code = 2

    def __init__(self, *problems: str):
        title = f"{len(problems)} settings cannot be used:"
        super().__init__("\n  - ".join([title, *problems] if len(problems) > 1 else problems))
        self.problems = problems


class InUse(UserError):
    """Another process is at work in the same folder."""


class TrainingStopped(NmtError):
    """Training cannot go on (a non-finite loss, a full disk); what was saved before is intact."""

    exit_code = 4


class NotReproduced(NmtError):
    """A training was repeated, and ended with other scores than the first time."""

    exit_code = 5


class Interrupted(BaseException):
    """A signal asked the process to stop, and it did so in good order; no error that a library may handle."""

    def __init__(self, number: int, message: str):
        super().__init__(message)
        self.exit_code = 128 + number


class Problems(list[str]):
    """What is wrong with a command: gathered, so that the user is told of everything at once."""

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Take note of a `UserError` of the block, and go on after the block."""
        try:
            yield
        except UserError as error:
            self.extend(problem for problem in error.problems if problem not in self)

    def refuse(self) -> None:
        """Raise one `UserError` with everything that was gathered, if there is anything."""
        if self:
            raise UserError(*self)


class ProblemsOfSome(dict[str, list[str]]):
    """What is wrong with several things of one kind: each problem, and the names of those that have it."""

    @contextlib.contextmanager
    def gathered(self, name: str) -> Iterator[None]:
        """Take note of a `UserError` of the block, which is about `name`, and go on after the block."""
        try:
            yield
        except UserError as error:
            for problem in error.problems:
                self.setdefault(problem, []).append(name)

    def refuse(self, total: int) -> None:
        """Raise one `UserError` with each problem, and with its names unless all of `total` have it."""
        Problems(
            problem if len(names) == total else f"{first_of(names, 3)}: {problem}"
            for problem, names in self.items()
        ).refuse()


def in_one_line(message: str) -> str:
    """Return a message of several lines as one, in which semicolons part them."""
    lines = [" ".join(line.split()).removeprefix("- ") for line in message.splitlines()]
    return "; ".join(filter(None, lines)).replace(":; ", ": ")


def visible(text: str) -> str:
    """Return `text` with escapes for what a terminal would obey: all that is not printable, but line feeds.

    Messages quote files of strangers: keys, headers, names.
    """
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    )


_WITNESS: ContextVar[Log | None] = ContextVar("witness", default=None)


@contextlib.contextmanager
def witnessed(log: Log) -> Iterator[None]:
    """Hand every warning of the block to `log`, too, such as that of a file."""
    token = _WITNESS.set(log)
    try:
        yield
    finally:
        _WITNESS.reset(token)


def warn(message: str) -> None:
    """Write `message` to standard error as a warning."""
    line = f"warning: {visible(message)}"
    if (witness := _WITNESS.get()) is not None:
        witness(line)
    print(line, file=sys.stderr)


def tell(line: str) -> None:
    """Write a remark to standard error."""
    print(visible(line), file=sys.stderr, flush=True)


def first_of(names: Iterable[object], most: int = 5) -> str:
    """Return the first names, and how many more there are, as a sentence lists them."""
    listed = list(map(str, names))
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def suggest(name: str, choices: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the choice nearest to `name`, or nothing when none is near."""
    near = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
