"""The table of fixers, which repair the text of training pairs: rows of data.fixers.

A row is the name of its code, a function in `nmt.data.text.fixers`. Imports no code: tables cost nothing
until pairs are repaired.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from nmt.data import rows
from nmt.data.rows import Row
from nmt.loading import Code


@dataclass(frozen=True)
class FixerConfig(Row):
    """A fixer, which has no keys but its name."""


class FixerRow(NamedTuple):
    """A row of the table."""

    code: Code
    """A function of a line that returns the line repaired."""
    needs_pair: bool = False
    """Whether `code` is a function of the source and the target instead, which returns both."""
    extra: str = ""
    """Row of `EXTRAS` with the libraries that the fixer needs."""


FIXERS: dict[str, FixerRow] = {
    "mojibake": FixerRow("nmt.data.text.fixers.mojibake", extra="mojibake"),
    "html_entities": FixerRow("nmt.data.text.fixers.html_entities"),
    "html_tags": FixerRow("nmt.data.text.fixers.html_tags"),
    "invisible": FixerRow("nmt.data.text.fixers.invisible"),
    "nfc": FixerRow("nmt.data.text.fixers.nfc"),
    "list_marks": FixerRow("nmt.data.text.fixers.list_marks", needs_pair=True),
    "spaces": FixerRow("nmt.data.text.fixers.spaces"),
}
"""Name of a fixer -> its row, in the order in which most corpora need them."""


def parsed(key: str, entries: object) -> list[FixerConfig]:
    """Return the fixers that `entries`, the value of `key`, say, in order; see `nmt.data.rows.parsed`."""
    return rows.parsed(key, entries, dict.fromkeys(FIXERS, FixerConfig))
