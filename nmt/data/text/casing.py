"""Inline case: "Hello NATO" as "hello⇧ nato⇪", so that a word has the same pieces in every case.

A mark stands behind the letters that it is about, so that the spaces, and with them the pieces, of a marked
word are those of the word in lower case. `restored(marked(line))` is the line, also where NFKC is applied in
between, and then up to NFKC. Only letters that have one upper and one lower form each, of one character, are
marked: "ß", "ı" and "ǅ" stay as they are. A character of a line that is a mark itself is escaped.

Berard et al. 2019 (Naver Labs Europe's systems for WMT19), section 3.2; the same as case markup of the
OpenNMT tokenizer, whose marks stand in front.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

TITLE, UPPER, BREAK, ESCAPE = "⇧", "⇪", "␟", "␛"
"""The first letter of the word is a capital; all letters are; the word ends here; the next mark is text."""
MARKS = (TITLE, UPPER, BREAK, ESCAPE)
LARGEST = 0xFFFF
"""Letters beyond the basic plane, such as those of Deseret, are not marked."""


class _Letters(NamedTuple):
    """Letters and their other case, and the patterns of what is marked and restored."""

    lower: dict[int, str]
    upper: dict[str, str]
    word: re.Pattern[str]
    """A word with a capital, or a mark that is text."""
    segment: re.Pattern[str]
    """The parts of a word: several capitals, a capital and what follows, letters before these."""
    mark: re.Pattern[str]
    """A mark and the letters before it."""
    only: re.Pattern[str]
    """Letters alone."""


def marked(lines: Sequence[str]) -> list[str]:
    """Return lines in lower case, with marks for their capitals."""
    pattern = _letters().word
    return [pattern.sub(_marked, line) for line in lines]


def restored(line: str) -> str:
    """Return the line of a marked one, also of one in which a model has put marks where none belong."""
    return "".join(_restored(line))


def restored_parts(parts: Sequence[str]) -> list[str]:
    """Return the parts of a restored line, given those of a marked one; a part may be empty then."""
    spans = iter(_restored("".join(parts)))
    return ["".join(next(spans) for _ in part) for part in parts]


def are_letters(text: str) -> bool:
    """Return whether a text is letters alone, so that a mark behind it is also about letters before it."""
    return _letters().only.fullmatch(text) is not None


@functools.cache
def _letters() -> _Letters:
    """Return the tables, which take a twentieth of a second to make."""
    simple = {
        chr(code): chr(code).lower()
        for code in range(LARGEST + 1)
        if (low := chr(code).lower()) != chr(code) and len(low) == 1 and low.upper() == chr(code)
    }
    pairs = {
        upper: lower
        for upper, lower in simple.items()
        if simple.get(unicodedata.normalize("NFKC", upper)) == unicodedata.normalize("NFKC", lower)
    }
    lowers = set(pairs.values())
    letters = [char for char in map(chr, range(LARGEST + 1)) if _is_letter(char)]
    forms = {char: _nfkc(char) for char in letters}
    others = [char for char in letters if char not in pairs and char not in lowers]
    neutral = [char for char in others if all(map(_is_letter, forms[char]))]
    inert = [char for char in neutral if lowers.isdisjoint(forms[char])]  # also beside capitals
    U, L, N, X = (_class(chars) for chars in (pairs, lowers, neutral, inert))
    any_mark = f"[{''.join(MARKS)}]"
    return _Letters(
        {ord(upper): lower for upper, lower in pairs.items()},
        {lower: upper for upper, lower in pairs.items()},
        re.compile(f"(?<![{L}{N}{U}])[{L}{N}]*[{U}][{L}{N}{U}]*|{any_mark}"),
        re.compile(f"(?P<upper>[{U}][{X}]*[{U}][{U}{X}]*)|(?P<title>[{U}][{L}{N}]*)|(?P<rest>[{L}{N}]+)"),
        re.compile(f"{ESCAPE}{any_mark}?|(?P<word>[{L}{N}{U}]*)(?P<mark>[{TITLE}{UPPER}{BREAK}])"),
        re.compile(f"[{L}{N}{U}]+"),
    )


def _nfkc(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def _is_letter(char: str) -> bool:
    return char.isalpha() or unicodedata.category(char)[0] == "M"


def _class(chars: Iterable[str]) -> str:
    """Return the inside of a character class, as ranges."""
    codes, found = sorted(map(ord, chars)), list[list[int]]()
    for code in codes:
        if found and code == found[-1][1] + 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in found)


@functools.lru_cache(1 << 12)
def _joins(char: str) -> bool:
    """Return whether a character outside of words may become a part of the word beside it."""
    return unicodedata.category(char)[0] == "C" or any(map(_is_letter, _nfkc(char)))


def _marked(match: re.Match[str]) -> str:
    text, line = match[0], match.string
    if text in MARKS:
        return ESCAPE + text
    start, end = match.span()
    if end < len(line) and unicodedata.combining(line[end]):
        return text  # NFKC may order this mark before others
    is_open = start > 0 and ord(text[0]) in _letters().lower and _joins(line[start - 1])
    return BREAK * is_open + _word(text)


@functools.lru_cache(1 << 16)
def _word(text: str) -> str:
    """Return a word with marks; a part stays as it is where NFKC would not leave its marked form alike."""
    found = ""
    for match in _letters().segment.finditer(text):
        part, kind = match[0], match.lastgroup
        made = part
        if kind != "rest":
            made = part.translate(_letters().lower) + (UPPER if kind == "upper" else TITLE)
            if not part.isascii() and restored(_nfkc(made)) != _nfkc(part):
                made = part
        if made != part and found and found[-1] not in MARKS:
            found += BREAK
        found += made
    return found


def _restored(line: str) -> list[str]:
    """Return what stands in the restored line for each character of a marked one, often the character."""
    letters, found = _letters(), list(line)
    for match in letters.mark.finditer(line):
        mark = match["mark"]
        if mark is None:
            found[match.start()] = ""  # the escape, which a model may also write before nothing
            continue
        found[match.end() - 1] = ""
        first, last = match.span("word")
        if mark == TITLE:
            last = min(last, first + 1)
        if mark != BREAK:
            found[first:last] = [letters.upper.get(char, char) for char in found[first:last]]
    return found
