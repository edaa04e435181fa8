"""The fixers of data.fixers: repairs of faults that are faults in any language.

What a language needs stays: joiners (Persian, Hindi), zero-width spaces beside letters of Thai or Khmer,
marks of direction in lines with letters that are written from the right, single no-break spaces (French) and
ideographic ones. Fixers know no tokens, and see pairs before anything is put in front of their sources.
"""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html import unescape
from html.entities import html5
from importlib.metadata import version

from nmt import extras
from nmt.data import fixer_table
from nmt.data.configs import DataConfig
from nmt.data.fixer_table import FIXERS, FixerConfig
from nmt.data.parallel_text import PairStream, ParallelText, Split, one_line
from nmt.data.text.words import THAI_TO_KHMER
from nmt.loading import loaded

FORMAT_VERSION = 1
"""Increased when what a fixer does changes."""
MAX_ESCAPES = 8
"""How often a text may have been escaped: `&amp;amp;` is `&` escaped twice."""
Repair = Callable[[ParallelText], ParallelText]


def fixers_of(cfg: DataConfig) -> list[FixerConfig]:
    """Return the fixers of the training pairs of a corpus; none for a mixture, whose corpora have them."""
    return [] if cfg.is_mixture else fixer_table.parsed(f"{cfg.key_prefix}.fixers", cfg.fixers)


def opened(rows: Sequence[FixerConfig]) -> list[Repair]:
    """Return the functions of fixers, each of a chunk of pairs.

    Raises:
        UserError: a library is not there.
    """
    require_libraries(rows)
    repairs = list[Repair]()
    for row in rows:
        code, needs_pair, _ = FIXERS[row.name]
        repairs.append(functools.partial(_of_pairs if needs_pair else _of_lines, loaded(code)))
    return repairs


def require_libraries(rows: Sequence[FixerConfig]) -> None:
    """Raise `UserError` unless the libraries of the fixers are there."""
    for row in rows:
        if extra := FIXERS[row.name].extra:
            extras.require(extra, f"data.fixers: the fixer {row.name}")


def stamp(rows: Sequence[FixerConfig]) -> str:
    """Return a hash of all that repairs depend on but the text."""
    require_libraries(rows)
    needed = [extras.EXTRAS[extra].distributions for row in rows if (extra := FIXERS[row.name].extra)]
    libraries = [version(name) for names in needed for name in names]
    parts = FORMAT_VERSION, [row.name for row in rows], unicodedata.unidata_version, libraries
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def repaired(source: PairStream, cfg: DataConfig, split: Split) -> PairStream:
    """Return a split of a corpus as its fixers leave it; they see training pairs alone."""
    rows = fixers_of(cfg) if split is Split.train else []

    def chunks() -> Iterator[ParallelText]:
        repairs = opened(rows)
        for chunk in source.chunks():
            yield functools.reduce(lambda text, repair: repair(text), repairs, chunk)

    def own_stamp() -> str:
        return hashlib.sha256(f"{source.stamp()} fixed by {stamp(rows)}".encode()).hexdigest()

    return PairStream(own_stamp, chunks) if rows else source


def _of_lines(fix: Callable[[str], str], text: ParallelText) -> ParallelText:
    return replace(text, src=list(map(fix, text.src)), tgt=list(map(fix, text.tgt)))


def _of_pairs(fix: Callable[[str, str], tuple[str, str]], text: ParallelText) -> ParallelText:
    pairs = list(map(fix, text.src, text.tgt))
    return replace(text, src=[src for src, _ in pairs], tgt=[tgt for _, tgt in pairs])


def mojibake(line: str) -> str:
    """Return a line whose UTF-8 was read as another encoding, perhaps several times, as it was meant."""
    if line.isascii():
        return line
    import ftfy  # type: ignore[import-not-found]

    return one_line(ftfy.fix_encoding(line))


# HTML

_ENTITY = re.compile(
    r"&(?:(?P<name>[a-zA-Z][a-zA-Z0-9]{1,31}|#\d{1,7}|#[xX][0-9a-fA-F]{1,6});"
    r"| ?(?P<apart>amp|quot|apos|lt|gt|nbsp|# ?\d{2,5}) ?;)"  # as tokenizers leave them
)


def html_entities(line: str) -> str:
    """Return a line with the characters that entities such as `&amp;` and `&#39;` stand for."""
    if "&" not in line:
        return line
    for _ in range(MAX_ESCAPES):
        before, line = line, _ENTITY.sub(_character, line)
        if line == before:
            break
    return one_line(line)


def _character(entity: re.Match[str]) -> str:
    name = (entity["name"] or entity["apart"]).replace(" ", "")
    return unescape(f"&{name};") if name[0] == "#" else html5.get(f"{name};", entity[0])


_INLINE = (
    "a abbr acronym b bdi bdo big cite code del dfn em font i ins kbd label mark nobr q s samp small span "
    "strike strong sub sup tt u var wbr"
)
_BREAKING = (
    "address article aside audio blockquote body br button caption center col dd div dl dt fieldset "
    "figcaption figure footer form h1 h2 h3 h4 h5 h6 head header hr html iframe img input legend li link "
    "main meta nav noscript object ol option p param pre script section select source style table tbody td "
    "textarea tfoot th thead title tr ul video"
)
_ALONE = (
    "allowfullscreen async autoplay checked compact controls default defer disabled hidden ismap loop "
    "multiple muted noshade novalidate nowrap open readonly required selected"
)
_ATTRIBUTES = (
    r"""(?:\s+(?:[a-zA-Z][\w:.-]*\s*=\s*(?:"[^"<]*"|'[^'<]*'|[^\s"'<>]+)"""
    rf"""|(?:{"|".join(_ALONE.split())})(?=[\s/>])))*\s*/?"""
)


def _tags(names: str) -> str:
    written = [*names.split(), *names.upper().split()]
    return rf"</?(?:{'|'.join(written)}){_ATTRIBUTES}>"


_COMMENT = re.compile(r"<!--(?:(?!<!--|-->).)*-->|<!doctype\b[^<>]*>", re.IGNORECASE)
_IN_WORDS = re.compile(_tags(_INLINE))
_BETWEEN_WORDS = re.compile(rf" ?{_tags(_BREAKING)} ?")
_ONE_LETTER = re.compile(r"<(/?)([a-zA-Z])(?=[\s/>])")


def html_tags(line: str) -> str:
    """Return a line without the tags of HTML; those that begin something new leave a space.

    Others in angle brackets, such as `<num>` and `<Button>`, stay, and so do names of one letter that are not
    both opened and closed, as in `x<a>`.
    """
    if "<" not in line:
        return line
    found = _COMMENT.sub("", line)

    opened = {tag[2] for tag in _ONE_LETTER.finditer(found) if not tag[1]}
    closed = {tag[2] for tag in _ONE_LETTER.finditer(found) if tag[1]}

    def or_kept(space: str, tag: re.Match[str]) -> str:
        name = _ONE_LETTER.match(tag[0].strip())
        return space if name is None or name[2] in opened & closed else tag[0]

    found = _IN_WORDS.sub(functools.partial(or_kept, ""), found)
    found = _BETWEEN_WORDS.sub(functools.partial(or_kept, " "), found)
    return line if found == line else found.strip()


# Characters

_BREAKS = re.compile("[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_NOTHING = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\xad\u2060\ufeff]"
    f"|(?<![{THAI_TO_KHMER}])\u200b(?![{THAI_TO_KHMER}])"
)
_DIRECTIONS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_FROM_THE_RIGHT = re.compile(
    "[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]"
)


def invisible(line: str) -> str:
    """Return a line without control characters and others that nobody sees, and spaces for line breaks."""
    if line.isprintable():
        return line
    line = _NOTHING.sub("", _BREAKS.sub(" ", line))
    return line if _FROM_THE_RIGHT.search(line) else _DIRECTIONS.sub("", line)


def nfc(line: str) -> str:
    """Return a line in the normal form C of Unicode: a letter with its marks is one character if it can."""
    return line if line.isascii() else unicodedata.normalize("NFC", line)


_SPACES = re.compile(r"\s+")
_OF_LANGUAGES = ("\xa0", "\u202f", "\u3000")


def spaces(line: str) -> str:
    """Return a line with one space for each run of white space, and none at its ends.

    No-break and ideographic spaces that stand alone stay.
    """
    return line if " ".join(line.split()) == line else _SPACES.sub(_space, line).strip()


def _space(run: re.Match[str]) -> str:
    kinds = set(run[0])
    return kinds.pop() if len(kinds) == 1 and kinds & {*_OF_LANGUAGES} else " "


# Pairs

_MARK = re.compile(
    r"\s*(?P<mark>[\u2022\u2023\u25aa\u25a0\u25cf\u25cb\u25e6\u25ba\u25b6\u25b8\u27a2\u27a4]\s*"
    r"|(?P<dash>[*\u00b7\u2010-\u2015-])\s+|(?P<number>(?:\d{1,3}|[a-zA-Z])\))\s+)(?=[\u00bf\u00a1]?[^\W\d_])"
)
_TEXT = re.compile(
    r"\s*[\u00bf\u00a1]?(?!\w{1,5}\s?(?:[):/\u3001\uff09\uff0e\uff1a]|[.\u2010-\u2015-]\s))[^\W\d_]"
)
"""A line that begins with no mark of its own, whatever the script."""
_NUMBERS = re.compile(r" (?:\d{1,3}|[a-zA-Z])\)")
_QUOTES = re.compile('["\u00ab\u00bb\u201c-\u201f\u300c-\u300f]')


def list_marks(src: str, tgt: str) -> tuple[str, str]:
    """Return a pair without the bullet, the dash or the number in brackets that one side alone begins with.

    Marks on both sides stay, in whatever script, and so does one that is there again on its side, as in
    dialogues, a dash where the other side has quotes, and one in a formula.
    """
    return _without_mark(src, tgt), _without_mark(tgt, src)


def _without_mark(line: str, other: str) -> str:
    found = _MARK.match(line)
    if found is None or not _TEXT.match(other):
        return line
    rest = line[found.end() :]
    is_meant = f" {found['mark'].strip()}" in rest
    if found["dash"]:
        is_meant = is_meant or bool(_QUOTES.search(other)) or "=" in rest
    elif found["number"]:
        is_meant = is_meant or bool(_NUMBERS.search(rest))
    return line if is_meant else rest
