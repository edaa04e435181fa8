"""The errors a user may meet, each with the exit code of the process that ends on it.

An error message is one readable text: the full config key or the file and line, the constraint, the actual
value and the way out. Anything else, but for `Interrupted`, is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable

Log = Callable[[str], None]
"""A function that shows the user one remark: in the log of a training, or on standard error."""


class NmtError(Exception):
    """Base of the errors that are shown without a traceback."""

    exit_code = 1


class UserError(NmtError):
    """The config, the data or the run directory cannot be used as given."""

    exit_code = 2


class TrainingStopped(NmtError):
    """Training cannot go on (a non-finite loss, a full disk); what was saved before is intact."""

    exit_code = 4


class Interrupted(BaseException):
    """A signal asked the process to stop, and it did so in good order; no error that a library may handle."""

    def __init__(self, number: int, message: str):
        super().__init__(message)
        self.exit_code = 128 + number


def warn(message: str) -> None:
    """Write `message` to standard error as a warning."""
    print(f"warning: {message}", file=sys.stderr)


def suggest(name: str, choices: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the choice nearest to `name`, or nothing when none is near."""
    near = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
