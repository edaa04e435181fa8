"""Text to sentences, by rules: full stops of the usual scripts, abbreviations, initials, numbers and quotes.

Nothing is lost but the spaces between sentences. Where the rules are in doubt they do not split. Tokens are
unknown here; who needs parts of some length says what is too long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from nmt.data.text.scripts import language_of
from nmt.data.text.words import CHINESE_JAPANESE

WIDE_STOPS = "。！？｡．"
"""Ends of sentences in Chinese and Japanese: no space follows."""
OTHER_STOPS = "؟۔।॥።։។။"
"""Ends of sentences in Arabic, Urdu, Hindi, Amharic, Armenian, Khmer and Burmese."""
CLOSING, OPENING = "\"'”’»›«“)\\]）］」』】〉》", "\"'“‘„‚«‹»(\\[¿¡（［「『【〈《-–—"
"""Quotation marks and brackets that may follow the end of a sentence, and that may begin one."""

_END = re.compile(
    rf"(?:[{WIDE_STOPS}]+[{CLOSING}]*\s*)|"
    # From the first of several stops alone: where no end follows it, none follows the others.
    rf"(?:(?<![.!?…{OTHER_STOPS}])(?P<stop>[.!?…{OTHER_STOPS}]+)[{CLOSING}]*(?:\s»)?(?:\[\d+\])?\s+)"
)
_BEHIND_QUOTE = re.compile("って|と(?!ても|っても|ころ|にかく|もかく|りあえず|くに|もに|きどき|たん)")
"""What goes on with a Japanese sentence behind what it quotes, and is no word that a sentence begins with."""
LOOKED_AT = 50
"""Characters before and after a stop that decide whether a sentence ends."""
_CLAUSE_ENDS = re.compile(r"(?<=[;:—–])\s+|(?<=[；：])|(?<=,)\s+|(?<=[，、،؛])\s*")
_LAST_WORD = re.compile(r"[^\s\"'“”„«»()\[\]]*$")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TITLES = _words(
    """mr mrs ms dr prof st sr jr gen col lt sgt capt rev hon gov sen rep pres messrs mme mlle mgr
    hr fr frl herr ing dipl med phil jur nat hl sra srta dña dn d.ª sig dott avv on ons nr no nos núm n°
    fig figs tab abb abs art bd bde kap kapitel vol vols ch chap sec sect eq eqs ref refs ed eds p pp s z bzw
    vs cf ca approx est inkl exkl zzgl ggf evtl vgl max min mind usw sog bspw str jan feb mär apr
    jun jul aug sep sept okt oct nov dez dec janv févr avr juil mt ft inc ltd co corp
    bros dept univ tel al ul im św ok tzw np č čl str tj např resp prov
    blz bijv enz drs mw dhr"""
)
"""Abbreviations after which, with a full stop, a sentence usually goes on; in small letters."""
CAN_END = _words("usw inc ltd co corp enz al ok no s z on im p str est min max art ed")
"""Those of `TITLES` that are as often words, or ends of sentences: they do not split before a number only."""
ORDINALS = _words("de at ch da nb nn no fi cs sk hu pl hr sl sr et lv tr is")
"""Languages that write ordinal numbers with a full stop: 3. Mai."""


def sentences(text: str, language: str = "") -> list[str]:
    """Return the sentences of a text, without spaces around them; none of a blank text.

    `language` is the code of the language, if it is known: some write a full stop behind ordinal numbers.
    """
    found, start = [], 0
    for end in _END.finditer(text):
        before = text[max(start, end.start() - LOOKED_AT) : end.start()]
        after = text[end.end() : end.end() + LOOKED_AT]
        if after and _is_end(before, end, after, language):
            found.append(text[start : end.end()])
            start = end.end()
    return [one.strip() for one in [*found, text[start:]] if one.strip()]


def _is_end(before: str, end: re.Match[str], after: str, language: str) -> bool:
    """Return whether a sentence ends with `before` and the stops and spaces of `end`."""
    stop = end["stop"]
    if stop is None:
        return not (_is_decimal_point(before, end[0], after) or _is_quoted(end[0], after))
    if stop[-1] in OTHER_STOPS:
        return True
    start = after.lstrip(OPENING.replace("\\", "") + " ")[:1]
    if start.islower():
        return False
    if stop != ".":
        return True
    word = match[0] if (match := _LAST_WORD.search(before)) else ""
    return not _is_abbreviation(word, start, language)


def _is_decimal_point(before: str, end: str, after: str) -> bool:
    """Return whether a wide full stop is inside of a number: ３．５."""
    return end == "．" and before[-1:].isdecimal() and after[0].isdecimal()


def _is_quoted(end: str, after: str) -> bool:
    """Return whether a Japanese sentence goes on behind what it quotes: 「はい。」と言った."""
    return end[-1] in "」』" and _BEHIND_QUOTE.match(after) is not None


def _is_abbreviation(word: str, start: str, language: str) -> bool:
    """Return whether the full stop behind `word` belongs to the word; `start` is the next character."""
    plain = word.lower().lstrip("-–—/")
    if plain.isdecimal():
        return len(plain) <= 2 and language_of(language) in ORDINALS
    if len(plain) == 1 and plain.isalpha() and plain.upper() != plain.lower():
        return word[-1:].isupper() or plain in TITLES  # an initial, as in J. Smith
    if "." in plain and all(len(part) <= 2 for part in plain.split(".")):
        return True  # U.S, z.B, e.g
    if plain in CAN_END:
        return start.isdecimal()
    return plain in TITLES


def parts(text: str, is_short: Callable[[str], bool], language: str = "") -> list[str]:
    """Return the sentences of a text, the long ones divided: at clauses, else words, else anywhere.

    The parts of a sentence are as long as they may be, and have all of its characters but spaces.
    """
    return [part for one in sentences(text, language) for part in _divided(one, is_short, _UNITS)]


_UNITS: tuple[Callable[[str], list[str]], ...] = (
    lambda text: [one for one in _CLAUSE_ENDS.split(text) if one.strip()],
    str.split,
)
"""Ways to divide a sentence, the best first."""


def _divided(
    text: str, is_short: Callable[[str], bool], units: tuple[Callable[[str], list[str]], ...]
) -> Iterator[str]:
    """Yield a text that is short, or else its units, as many at a time as are short together."""
    if is_short(text) or len(text) < 2:
        yield text
        return
    if not units:
        middle = len(text) // 2
        for half in (text[:middle], text[middle:]):
            yield from _divided(half, is_short, ())
        return
    first, *rest = units[0](text)
    for unit in rest:
        longer = joined([first, unit])
        if is_short(longer):
            first = longer
        else:
            yield from _divided(first, is_short, units[1:])
            first = unit
    yield from _divided(first, is_short, units[1:])


_SPACELESS = re.compile(rf"[{CHINESE_JAPANESE}\uff00-\uff60]")
"""Signs between which a space is an error; Thai, Khmer and others have none between words, but sentences."""
_QUOTES = "\"'“”‘’"


def joined(texts: list[str]) -> str:
    """Return texts as one line: with spaces between them, but for those of Chinese and Japanese."""
    line = ""
    for text in (text.strip() for text in texts):
        if line and text:
            bare = _SPACELESS.match(line.rstrip(_QUOTES)[-1:]) and _SPACELESS.match(text.lstrip(_QUOTES)[:1])
            line += "" if bare else " "
        line += text
    return line
