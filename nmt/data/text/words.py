"""Where the words of a text begin and end, in any script; Python's own `\\w` ends them at combining marks.

Vowel signs of Hindi, points of Hebrew and accents that are characters of their own are marks: they belong to
the letter before them, and so do the joiners that choose its form.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from itertools import groupby

THAI_TO_KHMER = "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff"
"""Thai, Lao, Tibetan, Burmese and Khmer, inside of a class."""
CHINESE_JAPANESE = "\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Their signs, inside of a class."""
NO_SPACES = THAI_TO_KHMER + CHINESE_JAPANESE
"""Scripts that put no spaces between words (Chinese, Japanese, Thai, Khmer, ...), inside of a class."""
JOINERS = "\u200c\u200d"
"""What keeps letters apart, or joins them, without a space."""
_LAST_BUT_SELECTORS = 0x1F000
"""Behind it there are no marks but the selectors of variants."""


def _marks() -> str:
    """Return all combining marks, as the inside of a class of characters."""
    numbers = [n for n in range(0x300, _LAST_BUT_SELECTORS) if unicodedata.category(chr(n))[0] == "M"]
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return "".join(f"{chr(run[0])}-{chr(run[-1])}" for run in runs) + "\U000e0100-\U000e01ef"


MARKS = _marks() + JOINERS
"""What belongs to the letter before it, inside of a class of characters."""
IN_WORD = rf"\w{MARKS}"
"""What words consist of, inside of a class of characters."""
_RUN = rf"[^\W{NO_SPACES}]+(?:[{MARKS}]+[^\W{NO_SPACES}]*)*"
_WITHOUT_SPACES, _IN_WORD = re.compile(f"[{NO_SPACES}]"), re.compile(f"[{IN_WORD}]")
COUNTED_ALONE = rf"(?=\S)[{CHINESE_JAPANESE}][{MARKS}]*|(?:[{THAI_TO_KHMER}][{MARKS}]*){{1,3}}"
"""Pattern of what counts as a word of a script without spaces; see `counted_words`."""
_COUNTED = re.compile(rf"[^\s{NO_SPACES}]+|{COUNTED_ALONE}")
UNIT = re.compile(rf"(?:(?![{NO_SPACES}])[{IN_WORD}])+|\S")
"""A word of a script with spaces between words, else a single sign or letter."""


def words_and_signs(links: str) -> re.Pattern[str]:
    """Return a pattern of single words and signs; `links` (inside of a class) may connect parts of a word.

    A script without spaces gives its letters one by one.
    """
    return re.compile(rf"[{NO_SPACES}][{MARKS}]*|{_RUN}(?:[{links}]{_RUN})*|[^\w\s][{MARKS}]*")


def counted_words(line: str) -> list[str]:
    """Return what counts as the words of a line: what spaces part, and about as much where none do.

    Each character of Chinese and Japanese is a word, and so are up to three letters, with their marks, of
    Thai, Lao, Tibetan, Burmese and Khmer, in which a word has about as many.
    """
    has_spaces = line.isascii() or _WITHOUT_SPACES.search(line) is None
    return line.split() if has_spaces else _COUNTED.findall(line)


@functools.cache
def is_in_word(character: str) -> bool:
    """Return whether words consist of such characters; nothing, "", is none."""
    return _IN_WORD.match(character) is not None


def is_without_spaces(text: str) -> bool:
    """Return whether a text begins in a script that puts no spaces between words."""
    return _WITHOUT_SPACES.match(text) is not None


@functools.cache
def parts_words(character: str) -> bool:
    """Return whether a character is of a word, and of a script in which spaces separate words."""
    return is_in_word(character) and not is_without_spaces(character)


def is_whole(text: str, start: int, end: int) -> bool:
    """Return whether a part of a text is no part of longer words, except of scripts without spaces."""
    goes_on_before = parts_words(text[start]) and is_in_word(text[start - 1 : start])
    return not goes_on_before and not (parts_words(text[end - 1]) and is_in_word(text[end : end + 1]))


def has_whole(text: str, phrase: str, start: int = 0) -> bool:
    """Return whether a text has a phrase, from `start` on, where it `is_whole`."""
    place = text.find(phrase, start)
    while place >= 0:
        if is_whole(text, place, place + len(phrase)):
            return True
        place = text.find(phrase, place + 1)
    return False
