"""Characters of lines, looked at by the million: tables over all code points, and facts of each line.

A block of lines is one array of code points, in which every line ends with a line feed. What is said of a
line is found by a table that is indexed with the array, and by a reduction over the line; only lines that may
have markup are looked at one by one. Of a line the first `MAX_LOOKED` characters are looked at.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.cleaning.pair_filters import normalised
from nmt.data.text.scripts import script_of
from nmt.doctor.hashes import Hashes, line_hashes, mixed, powers

MAX_LOOKED = 5_000
"""Characters of a line that are looked at."""
BLOCK_LINES = 10_000
"""Lines that are looked at together."""

CONTROL, BREAK, INVISIBLE, MARK, REPLACEMENT, PRIVATE, MARKUP, COLON, WHITE, GARBLED, MIXED, JOINED = (
    1 << bit for bit in range(12)
)
"""Bits of a line: a control character, a line break of another kind, an invisible character, a byte order
mark, U+FFFD, a character without meaning, a sign of markup, a colon, white space, signs of text that was
decoded with the wrong encoding, a word in several scripts, a character that is normalised together with those
around it, or to several ones."""

SCRIPTS = (
    *("Latin", "Greek", "Cyrillic", "Armenian", "Hebrew", "Arabic", "Devanagari", "Bengali", "Gurmukhi"),
    *("Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam", "Sinhala", "Thai", "Lao", "Tibetan"),
    *("Myanmar", "Georgian", "Hangul", "Ethiopic", "Khmer", "Mongolian", "Hiragana", "Katakana", "Han"),
    "other",
)
"""Scripts that are told apart; bit i of a set is that of the i-th."""
CONFUSABLE = 0b111
"""Latin, Greek and Cyrillic, whose letters look alike: no word has two of them."""
_BREAKS = "\r\x0b\x0c\x85\u2028\u2029"
_JOINERS = "\u200c\u200d"  # what Persian, the languages of India and pictures of people need
_CP1252 = "€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
_HTML = re.compile(r"&(?:[a-zA-Z][a-zA-Z0-9]{1,7}|#\d{1,7}|#x[0-9a-fA-F]{1,6});|</?[a-zA-Z][^<>]{0,200}>")
_URL = re.compile(r"[a-zA-Z]{2,6}://\S")


class Tables(NamedTuple):
    """What is known of each code point."""

    flags: NDArray[np.uint16]
    scripts: NDArray[np.uint32]
    """A set of one script for a letter, else of none."""
    plain: NDArray[np.uint32]
    """What `normalised` makes of a letter, mark or digit, the first of several characters; 0 for everything
    else; a line feed is itself."""
    digits: NDArray[np.uint8]
    """1 more than the value of a decimal digit, 0 for everything else."""


def _flag(character: str) -> int:
    category = unicodedata.category(character)
    flag = WHITE if character.isspace() else 0
    if character in _BREAKS:
        return flag | BREAK
    if character == "\ufeff":
        return MARK
    if character == "\ufffd":
        return REPLACEMENT
    if category == "Cc":
        return flag if character in "\t\n" else flag | CONTROL
    visible_format = 0x600 <= ord(character) <= 0x6DD or character in _JOINERS
    return flag | (INVISIBLE if category == "Cf" and not visible_format else 0)


def _script(character: str) -> int:
    word = script_of(character)
    script = "Han" if word == "CJK" else word.capitalize()
    if script in SCRIPTS:
        return 1 << SCRIPTS.index(script)
    unknown = word in ("MODIFIER", "MATHEMATICAL", "MICRO", "FEMININE", "MASCULINE", "OHM", "")
    return 0 if unknown else 1 << len(SCRIPTS) - 1


def _joins(character: str) -> bool:
    """Return whether a character may change, or be changed by, those before it when lines are normalised."""
    return any(map(_joining().__contains__, unicodedata.normalize("NFKC", character)))


@functools.cache
def _joining() -> frozenset[str]:
    """Return the marks that are sorted, and what is a character together with the one before it."""
    hangul = map(chr, [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)])
    characters = list(map(chr, [*range(0xD800), *range(0xF900, 0x20000)]))
    parts = (unicodedata.decomposition(character).split() for character in characters)
    second = (chr(int(both[1], 16)) for both in parts if len(both) == 2 and not both[0].startswith("<"))
    return frozenset([*hangul, *second, *filter(unicodedata.combining, characters)])


@functools.cache
def tables() -> Tables:
    """Make the tables by the character database of Python."""
    size = sys.maxunicode + 1
    flags, digits = np.zeros(size, np.uint16), np.zeros(size, np.uint8)
    scripts, plain = np.zeros(size, np.uint32), np.zeros(size, np.uint32)
    for code in [*range(0xD800), *range(0xF900, 0x20000), *range(0x2F800, 0x2FA20), *range(0xE0000, 0xE1000)]:
        character = chr(code)
        flags[code] = _flag(character)
        category = unicodedata.category(character)
        if category[0] in "LMN" or not unicodedata.is_normalized("NFKC", character):
            kept = normalised(f"a {character}")[1:]  # behind a space nothing joins
            plain[code] = ord(kept[0]) if kept else 0
            flags[code] |= JOINED * (len(kept) > 1 or _joins(character))
        if category[0] == "L":
            scripts[code] = _script(character)
        if category == "Nd":
            digits[code] = unicodedata.decimal(character) + 1
    flags[0xE000:0xF900] = flags[0xF0000:] = PRIVATE
    scripts[0x20000:0x33480] = 1 << SCRIPTS.index("Han")
    han = normalised("".join(map(chr, [*range(0x20000, 0x2F800), *range(0x2FA20, 0x33480)])))
    codes = np.frombuffer(han.encode("utf-32-le"), np.uint32)
    plain[codes] = codes
    flags[[ord(sign) for sign in "<&"]] |= MARKUP
    flags[ord(":")] |= COLON
    plain[10] = 10
    return Tables(flags, scripts, plain, digits)


@dataclass
class LineFacts:
    """What is known of each line of a block."""

    chars: NDArray[np.int64]
    words: NDArray[np.int64]
    flags: NDArray[np.uint16]
    scripts: NDArray[np.uint32]
    exact: Hashes
    """A hash of the line."""
    plain: Hashes
    """A hash of what `normalised` makes of the line."""
    numbers: Hashes
    """A hash of the numbers of two digits or more, in any order; 0: none."""
    is_open: NDArray[np.bool_]
    """Whether brackets or straight double quotes are opened but not closed, or the other way round."""
    html: NDArray[np.bool_]
    url: NDArray[np.bool_]


def facts_of(lines: list[str], counts: NDArray[np.int64]) -> LineFacts:
    """Return the facts of lines, and add the number of each character to `counts`."""
    chars = np.fromiter(map(len, lines), np.int64, len(lines))
    cut = [line[:MAX_LOOKED] for line in lines] if chars.max(initial=0) > MAX_LOOKED else lines
    text = "\n".join(cut) + "\n"
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    starts = np.zeros(len(lines), np.int64)
    np.cumsum(np.minimum(chars, MAX_LOOKED)[:-1] + 1, out=starts[1:])
    counts += np.bincount(codes, minlength=len(counts))
    table = tables()
    flags = table.flags[codes]
    line_flags = np.bitwise_or.reduceat(flags, starts)
    scripts = table.scripts[codes]
    line_flags |= _garbled(codes, starts) | _mixed_words(scripts, starts)
    white = (flags & WHITE) > 0
    begins = ~white
    begins[1:] &= white[:-1]
    plain = table.plain[codes]
    kept = plain > 0
    sizes = np.add.reduceat(kept, starts, dtype=np.int64)
    plain_starts = np.zeros(len(lines), np.int64)
    np.cumsum(sizes[:-1], out=plain_starts[1:])
    plain_hashes = line_hashes(plain[kept], plain_starts, MAX_LOOKED + 1)
    rows = np.flatnonzero(((line_flags & JOINED) > 0) | (sizes == 1))
    plain_hashes[rows] = _normalised_hashes([cut[row] for row in rows.tolist()])
    html, url = np.zeros(len(lines), bool), np.zeros(len(lines), bool)
    for found, bit, pattern in ((html, MARKUP, _HTML), (url, COLON, _URL)):
        marked = np.flatnonzero(line_flags & bit).tolist()
        found[marked] = [pattern.search(cut[row]) is not None for row in marked]
    return LineFacts(
        chars=chars,
        words=np.add.reduceat(begins, starts, dtype=np.int64),
        flags=line_flags,
        scripts=np.bitwise_or.reduceat(scripts, starts),
        exact=mixed(line_hashes(codes, starts, MAX_LOOKED + 1) + chars.astype(np.uint64)),
        plain=plain_hashes,
        numbers=_numbers(codes, starts),
        is_open=_is_open(codes, starts),
        html=html,
        url=url,
    )


def _normalised_hashes(lines: list[str]) -> Hashes:
    """Return the hashes of what `normalised` makes of lines whose characters do not tell it one by one."""
    texts = [f"{normalised(line)[:MAX_LOOKED]}\n" for line in lines]
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    return line_hashes(codes, np.cumsum(sizes) - sizes, MAX_LOOKED + 1)


def _lines_of(places: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the lines in which the places are."""
    return np.searchsorted(starts, places, "right") - 1


@functools.cache
def _wrongly_decoded() -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which code points are the first bytes of UTF-8 read as Windows-1252, and which the next ones."""
    first, following = np.zeros(sys.maxunicode + 1, bool), np.zeros(sys.maxunicode + 1, bool)
    first[[ord(sign) for sign in "ÂÃÅÐÑâ"]] = True
    following[0x80:0xC0] = True
    following[[ord(sign) for sign in _CP1252]] = True
    following[[ord(sign) for sign in "«»’”"]] = False  # follow these letters in good text, too
    return first, following


def _garbled(codes: NDArray[np.uint32], starts: NDArray[np.int64]) -> NDArray[np.uint16]:
    """Return GARBLED for lines with UTF-8 that was read as Windows-1252 or Latin-1."""
    first, following = _wrongly_decoded()
    found = np.zeros(len(starts), np.uint16)
    places = np.flatnonzero(first[codes])  # never the last place, which is a line feed
    found[_lines_of(places[following[codes[places + 1]]], starts)] = GARBLED
    return found


def _mixed_words(scripts: NDArray[np.uint32], starts: NDArray[np.int64]) -> NDArray[np.uint16]:
    """Return MIXED for lines with a word that has letters of several of the scripts that look alike."""
    found = np.zeros(len(starts), np.uint16)
    alike = (scripts & CONFUSABLE).astype(np.uint8)
    changes = np.flatnonzero((alike[1:] != alike[:-1]) & (alike[1:] > 0) & (alike[:-1] > 0))
    found[_lines_of(changes, starts)] = MIXED
    return found


def _numbers(codes: NDArray[np.uint32], starts: NDArray[np.int64]) -> Hashes:
    """Return a hash of the numbers of two digits or more in each line, 0 where there is none."""
    values = tables().digits[codes]
    places = np.flatnonzero(values)
    found = np.zeros(len(starts), np.uint64)
    if not len(places):
        return found
    begins = np.flatnonzero(np.diff(places, prepend=-2) > 1)
    sizes = np.diff(begins, append=len(places))
    offsets = np.arange(len(places)) - np.repeat(begins, sizes)
    terms = values[places].astype(np.uint64) * powers(MAX_LOOKED + 1)[offsets]
    hashes = mixed(np.add.reduceat(terms, begins))
    long = sizes > 1
    np.add.at(found, _lines_of(places[begins[long]], starts), hashes[long])
    return found


@functools.cache
def _brackets() -> NDArray[np.int64]:
    """Return a number for each code point, such that those of closed brackets add up to 0."""
    worth = np.zeros(sys.maxunicode + 1, np.int64)
    for number, (left, right) in enumerate(map(tuple, ("()", "[]", "{}", "（）"))):
        worth[ord(left)], worth[ord(right)] = 1 << 13 * number, -(1 << 13 * number)
    return worth


def _is_open(codes: NDArray[np.uint32], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    quotes = np.add.reduceat(codes == ord('"'), starts, dtype=np.int64)
    return (np.add.reduceat(_brackets()[codes], starts) != 0) | (quotes % 2 == 1)
