"""A line before it is tokenised: lower-cased, and without punctuation, where the config asks for that.

Knows lines of text, and neither pieces nor files. A line keeps its place: one of nothing but punctuation
becomes blank and is never left out here.

Capitals are mapped by `str.lower`, which keeps ß; folding would make it ss. Punctuation is what Unicode calls
so (its categories P*: "%" and "-" are, the symbols "+", "=" and "€" are not). Each mark becomes a space, so
that "red/blue" and "well-known" become two words; an apostrophe becomes nothing, so that "don't" stays one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

APOSTROPHES = "'\N{RIGHT SINGLE QUOTATION MARK}"


class _Unpunctuated(dict[int, int | str | None]):
    """A table for `str.translate`, filled as characters turn up."""

    def __missing__(self, code: int) -> int | str | None:
        character = chr(code)
        self[code] = code
        if unicodedata.category(character).startswith("P"):
            self[code] = None if character in APOSTROPHES else " "
        return self[code]


_UNPUNCTUATED = _Unpunctuated()


def prepare(lines: Sequence[str], *, lowercase: bool, strip_punctuation: bool) -> list[str]:
    """What is tokenised of each line."""
    ready = [line.lower() for line in lines] if lowercase else list(lines)
    return [line.translate(_UNPUNCTUATED) for line in ready] if strip_punctuation else ready
