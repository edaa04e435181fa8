"""Inline tags of a line: taken out of it, and put into its translation where an alignment says.

Tags are those of HTML and XLIFF, comments, and placeholders such as `{name}` or `%s`. A line without its tags
is plain text, with entities decoded. Its *units* are words, punctuation marks, and single letters of scripts
without spaces. A pair of tags belongs to the units between its tags; any other tag lies in a gap, which has
the number of the unit after it. Pairs are a tree, so that what was nested stays nested. Knows no model.

Shapes: T units of the translation, S units of the source.

A pair goes around the stretch of units that most of its source units are aligned with (Hanneman and Dinu 2020
compare such ways); a tag is never doubled, so that a stretch is all that a pair gets.
"""

from __future__ import annotations

import html
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.text.words import JOINERS, is_in_word, parts_words, words_and_signs

Weights = NDArray[np.float64]
Span = tuple[int, int]

ATTRIBUTES = r"""(?:\s(?:[^<>"']|"[^"]{0,4000}"|'[^']{0,4000}'){0,4000})?"""
IN_LATIN_WORD = r"0-9A-Za-z_\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0300-\u036f\u1e00-\u1eff"
"""What goes on a word that begins with a Latin letter, such as that of `100%sicher`, inside of a class."""
TAG = re.compile(
    rf"""
      (?P<comment> <!--.{{0,8000}}?--> | <\?[^<>]{{0,4000}}\?> )
    | (?P<code> <(?P<holder>bpt|ept|ph|it)\b{ATTRIBUTES}(?<!/)>[^<>]{{0,4000}}</(?P=holder)\s*> )
    | < (?P<closing>/?) (?P<name>[A-Za-z_][\w:.-]{{0,200}}) {ATTRIBUTES} /? >
    | (?P<placeholder>
        \$?\{{{{?[A-Za-z_0-9][\w.:-]{{0,200}}\}}?\}}
      | %(?:\(\w{{1,200}}\)|\d{{1,3}}\$)(?:\.\d{{1,3}})?(?:[sdfiu]|l[du])
      | %(?:\.\d{{1,3}})?(?:[sdfiu]|l[du])(?![{IN_LATIN_WORD}])
      )
    """,
    re.VERBOSE | re.DOTALL,
)
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]\w{1,31});")
KEY = re.compile(r"""\s(?:rid|startRef|id)\s*=\s*["']?([^\s"'>/]+)""")
VOID = frozenset(re.findall(r"\w+", "area base br col embed hr img input link meta param source track wbr"))
"""Elements of HTML that have no content, and need no slash."""
BREAKS = frozenset(("br", "hr"))
"""Elements that part words even where no space does."""
OPENING, CLOSING = frozenset(("bpt", "bx", "sc")), frozenset(("ept", "ex", "ec"))
"""Empty elements of XLIFF that begin and end something."""
UNIT = words_and_signs("-'’.")
CLOSING_MARK = re.compile(r"[.,;:!?)\]}»…。、，！？]")
ZERO_WIDTH_SPACE = "\u200b"
FREE = 0.5
"""Share of the weight of a unit that has to lie between two tags so that the unit belongs between them."""


class Kind(Enum):
    """What a tag does."""

    opens = "opens"
    closes = "closes"
    point = "point"


@dataclass(eq=False)
class Tag:
    """One tag of a line."""

    raw: str
    """The tag as it is written; nothing inside of it is ever changed."""
    kind: Kind
    name: str
    """What a tag and its partner have in common."""
    breaks: bool = False
    """Whether it parts words."""
    offset: int = 0
    """Its place in the plain text, in characters."""
    spaces: tuple[bool, bool] = (False, False)
    """Whether the line has a space directly before it, and after it."""
    joins: tuple[bool, bool] = (False, False)
    """Whether a letter or digit stands directly before it, and after it."""
    partner: Tag | None = None


@dataclass(eq=False)
class Element:
    """A pair of tags with what it encloses, or one tag: a node of the tree of a line."""

    tags: list[Tag]
    span: Span
    """Source units between its tags; of one tag the gap, twice."""
    order: int
    """Number of its first tag in the line."""
    parts: list[Element] = field(default_factory=list)
    place: Span = (0, 0)
    """The same in the translation, once it is known."""
    is_free: bool = False
    """Whether it crosses another pair, and is therefore no part of the tree."""


class Unit(NamedTuple):
    """A word or mark, by its characters."""

    start: int
    end: int


def units(text: str) -> list[Unit]:
    """Return the units of a line of plain text."""
    return [Unit(*found.span()) for found in UNIT.finditer(text)]


class TaggedLine:
    """A line with its tags taken out."""

    def __init__(self, line: str):
        self.spelt: dict[str, str] = {}
        """Characters and the entity that the line has for them."""
        self.text, self.tags = _stripped(line, self.spelt)
        """The line without tags, entities decoded; and the tags in their order."""
        self.units = units(self.text)
        self.is_plain = not self.tags and self.text == line
        """Whether the line has neither tags nor entities."""
        if not self.is_plain:
            bare = ENTITY.sub(_if_unknown, TAG.sub("", line))
            for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
                if character not in bare:
                    self.spelt.setdefault(character, entity)
        _pair(self.tags)
        self.root, self.is_well_formed = _tree(self.tags, self.units)

    def put_into(self, translation: str, weights: Weights) -> str:
        """Return a translation with the tags of the line, each once, and characters spelt as in the line.

        `weights` (T, S) say how much each unit of the translation belongs to each unit of the line.
        """
        found = units(translation)
        if self.tags:
            _settle(self, translation, found, weights)
        return _rendered(self, translation, found)


def by_position(targets: int, sources: int) -> Weights:
    """Return weights (T, S) for units in the same order: the fallback of models without attention."""
    wanted = (np.arange(targets) + 0.5) / max(targets, 1) * sources
    distance = np.abs(wanted[:, None] - (np.arange(sources) + 0.5)[None, :])
    return np.asarray(np.maximum(1.0 - distance, 0.0) + 1e-6)


def unit_weights(
    weights: NDArray[np.float32], src: Sequence[str], tgt: Sequence[str], line: str, translation: str
) -> Weights:
    """Return the weights (T, S) between units, given those between the pieces of both sides.

    `src` and `tgt` are the surfaces of the pieces, `line` and `translation` the plain texts they stand for. A
    piece is divided among its units by characters; the weights of source pieces are added up, those of target
    pieces averaged. What a line has before `line`, as the tag of a language, belongs to no unit.
    """
    from_pieces = _shares(src, line)
    to_pieces = _shares(tgt, translation)
    from_pieces /= np.maximum(from_pieces.sum(1, keepdims=True), 1.0)
    return np.asarray(to_pieces.T @ weights @ from_pieces / np.maximum(to_pieces.sum(0)[:, None], 1.0))


def _shares(surfaces: Sequence[str], line: str) -> Weights:
    """Return (pieces, units): the number of characters that a piece and a unit share, spaces not counted."""
    letters = np.cumsum([0, *(not character.isspace() for character in line)])
    found = units(line)
    bounds = np.array([[letters[one.start], letters[one.end]] for one in found], dtype=float).reshape(-1, 2)
    ends = np.cumsum([0, *(sum(not c.isspace() for c in surface) for surface in surfaces)]).astype(float)
    ends += letters[-1] - ends[-1] if ends[-1] > letters[-1] else 0  # a tag of the language before the line
    low = np.maximum(ends[:-1, None], bounds[None, :, 0])
    return np.asarray(np.maximum(np.minimum(ends[1:, None], bounds[None, :, 1]) - low, 0.0))


def _if_unknown(entity: re.Match[str]) -> str:
    """Return an entity that is not known, which stays as it is, and nothing for others."""
    return entity[0] if html.unescape(entity[0]) == entity[0] else ""


# Taking tags out


def _stripped(line: str, spelt: dict[str, str]) -> tuple[str, list[Tag]]:
    """Return the plain text and the tags of a line; write its entities to `spelt`."""
    text, tags, last = "", list[Tag](), 0
    matches = list(TAG.finditer(line))
    found = [_tag(match) for match in matches]
    behind = _behind(matches, found)
    for number, (match, tag) in enumerate(zip(matches, found, strict=True)):
        text = _joined(text, _decoded(line[last : match.start()], spelt), tags)
        before, after = line[: match.start()][-1:], line[match.end() : match.end() + 1]
        tag.offset, tag.spaces = len(text), (before.isspace(), after.isspace())
        tag.joins = parts_words(before), parts_words(after)
        end, breaks_again = behind[number]
        if tag.breaks and not breaks_again and is_in_word(text[-1:]) and line[end : end + 1].strip():
            text += " "
        tags.append(tag)
        last = match.end()
    text = _joined(text, _decoded(line[last:], spelt), tags)
    return (text.rstrip(), tags) if tags else (text, tags)


def _behind(matches: Sequence[re.Match[str]], tags: Sequence[Tag]) -> list[tuple[int, bool]]:
    """Return for each tag where the tags right behind it end, and whether one of these parts words."""
    found = list[tuple[int, bool]]()
    for number in reversed(range(len(matches))):
        end = matches[number].end()
        if found and matches[number + 1].start() == end:
            after, breaks_again = found[-1]
            found.append((after, breaks_again or tags[number + 1].breaks))
        else:
            found.append((end, False))
    return found[::-1]


def _joined(text: str, more: str, tags: Sequence[Tag]) -> str:
    """Return the text and what follows a tag, without the second of two spaces that the tag parted."""
    if not tags:
        return text + more
    if not text or text[-1].isspace():
        more = more.lstrip()
        if tags[-1].kind is Kind.point and CLOSING_MARK.match(more):  # "Hello {name}, ..."
            text = text.rstrip()
            for tag in itertools.takewhile(lambda tag: tag.offset > len(text), reversed(tags)):
                tag.offset = len(text)
    return text + more


def _decoded(text: str, spelt: dict[str, str]) -> str:
    """Return text with its entities decoded; what would be no visible character becomes a space, or nothing.

    Nothing is what parts no words, such as a soft hyphen.
    """

    def decoded(match: re.Match[str]) -> str:
        character = html.unescape(match[0])
        if character == match[0]:  # no entity that is known
            return character
        if len(character) == 1 and not character.isprintable() and character not in JOINERS:
            return "" if unicodedata.category(character) == "Cf" and character != ZERO_WIDTH_SPACE else " "
        if character.isspace():
            return " "
        if len(character) == 1:  # what is spelt again is single characters
            spelt.setdefault(character, match[0])
        return character

    return ENTITY.sub(decoded, text)


def _tag(match: re.Match[str]) -> Tag:
    raw, name = match[0], match["holder"] or match["name"] or ""
    key = KEY.search(raw)
    if name in OPENING or name in CLOSING:
        kind = Kind.opens if name in OPENING else Kind.closes
        return Tag(raw, kind, f"#{name[-1] if name[0] == 's' else name[1:]}"[:1] + (key[1] if key else ""))
    if match["name"] is None or raw.endswith("/>") or name.lower() in VOID:
        return Tag(raw, Kind.point, name, name.lower() in BREAKS)
    return Tag(raw, Kind.closes if match["closing"] else Kind.opens, name)


def _pair(tags: Sequence[Tag]) -> None:
    """Give each closing tag the last tag of its name that is open."""
    waiting: dict[str, list[Tag]] = {}
    for tag in tags:
        if tag.kind is Kind.opens:
            waiting.setdefault(tag.name, []).append(tag)
        elif tag.kind is Kind.closes and waiting.get(tag.name):
            tag.partner = waiting[tag.name].pop()
            tag.partner.partner = tag


def _tree(tags: Sequence[Tag], found: Sequence[Unit]) -> tuple[Element, bool]:
    """Return the elements of a line as a tree, and whether each tag has its partner and no pairs cross."""
    starts, ends = [one.start for one in found], [one.end for one in found]
    first = {id(t): int(np.searchsorted(ends, t.offset, side="right")) for t in tags}  # units that go on
    after = {id(t): int(np.searchsorted(starts, t.offset, side="left")) for t in tags}  # units begun before
    root = Element([], (0, len(found)), -1)
    path, is_well_formed = [root], True
    for order, tag in enumerate(tags):
        if tag.kind is Kind.closes and tag.partner is not None:
            is_well_formed &= _close(path, tag.partner)
            continue
        begin = first[id(tag)]
        if tag.partner is None:
            is_well_formed &= tag.kind is Kind.point
            path[-1].parts.append(Element([tag], (begin, begin), order))
            continue
        element = Element([tag, tag.partner], (begin, max(begin, after[id(tag.partner)])), order)
        path[-1].parts.append(element)
        path.append(element)
    return root, is_well_formed


def _close(path: list[Element], tag: Tag) -> bool:
    """Take the pair that `tag` opens from the open ones; return False if others are open inside of it.

    Those cross it. They are moved out of the tree, and stand beside the pairs that are nested.
    """
    at = next((i for i in reversed(range(len(path))) if path[i].tags[:1] == [tag]), None)
    if at is None:  # moved out
        return True
    crossing = path[at + 1 :]
    del path[at:]
    for one in crossing:
        one.is_free = True
    return not crossing


# Putting tags in


def _settle(line: TaggedLine, translation: str, found: Sequence[Unit], weights: Weights) -> None:
    """Find the place of every element of a line, pairs from the outside to the inside."""
    near = _anchored(line, translation, found, weights)
    line.root.place = (0, len(found))
    waiting = [line.root]
    while waiting:
        parent = waiting.pop()
        nested = [part for part in parent.parts if len(part.tags) == 2 and part.span[0] < part.span[1]]
        _settle_pairs([one for one in nested if not one.is_free], parent.place, near)
        for one in nested:
            if one.is_free:
                one.place, _ = _best_stretch(_values(near, one.span), [parent.place])
        taken = [one.place for one in nested if not one.is_free]
        for part in parent.parts:
            if part not in nested:
                gap = _gap(part, parent, near)
                gap = next((_nearest(gap, span) for span in taken if span[0] < gap < span[1]), gap)
                part.place = (gap, gap)
        waiting += parent.parts


def _settle_pairs(pairs: Sequence[Element], inside: Span, near: Weights) -> None:
    """Give each of several pairs side by side a stretch of its own, the surest pair first."""
    free, values = [inside], [_values(near, one.span) for one in pairs]
    best = {number: _best_stretch(of_pair, free) for number, of_pair in enumerate(values)}
    while best:  # a pair leaves it with its place
        chosen = max(best, key=lambda number: best[number][1])
        place, _ = best.pop(chosen)
        pairs[chosen].place = place
        free = [part for span in free for part in _without(span, place)]
        for number, (stretch, _) in best.items():
            if stretch[0] < place[1] and place[0] < stretch[1]:  # else it is as free as before
                best[number] = _best_stretch(values[number], free or [(inside[1], inside[1])])


def _without(span: Span, place: Span) -> list[Span]:
    if place[0] == place[1] or place[1] <= span[0] or span[1] <= place[0]:
        return [span]
    return [part for part in ((span[0], place[0]), (place[1], span[1])) if part[0] < part[1]]


def _nearest(gap: int, span: Span) -> int:
    return span[0] if gap - span[0] <= span[1] - gap else span[1]


def _values(near: Weights, span: Span) -> Weights:
    """Return for each unit of the translation by how much it speaks for a place inside of a pair."""
    return np.asarray(near[:, span[0] : span[1]].sum(1) - FREE)


def _best_stretch(values: Weights, free: Sequence[Span]) -> tuple[Span, float]:
    """Return the stretch with the largest sum, and the sum; at least one unit where one is free."""
    best, most = (free[0][0], free[0][0]), -np.inf
    for low, high in free:
        start, total = low, 0.0
        for index in range(low, high):
            if total <= 0.0:
                start, total = index, 0.0
            total += float(values[index])
            if total > most:
                best, most = (start, index + 1), total
    return best, float(most)


def _gap(part: Element, parent: Element, near: Weights) -> int:
    """Return the gap between the units that belong to the neighbours of a tag, inside of its parent."""
    (low, high), (first, last), gap = parent.place, parent.span, part.span[0]
    if part.order < 0 or gap <= first:
        return low
    if gap >= last:
        return high
    before, after = part.tags[0].spaces[0], part.tags[-1].spaces[1]
    left, right = (1.0, 1.5) if before and not after else (1.5, 1.0)
    inner = near[low:high]
    scores = np.zeros(high - low + 1)
    scores[1:] += left * inner[:, gap - 1]
    scores[:-1] += right * inner[:, gap]
    ahead, behind = inner[:, first:gap].sum(1), inner[:, gap:last].sum(1)
    split = np.concatenate([[0.0], np.cumsum(ahead)]) + behind.sum()
    split -= np.concatenate([[0.0], np.cumsum(behind)])
    return low + int(np.argmax(scores + 0.5 * split))


def _anchored(line: TaggedLine, translation: str, found: Sequence[Unit], weights: Weights) -> Weights:
    """Return (T, S) whose rows sum to 1; a unit that is in both texts as often belongs to itself.

    The columns are made to sum to 1 before: many target words look at some source words, such as marks, which
    they do not translate.
    """
    near = np.asarray(weights, dtype=float)
    near = near / np.maximum(near.sum(0, keepdims=True), 1e-9)
    near = near / np.maximum(near.sum(1, keepdims=True), 1e-9)
    ours, theirs = _by_text(line.text, line.units), _by_text(translation, found)
    for text, places in theirs.items():
        if len(places) == len(ours.get(text, ())):
            for row, column in zip(places, ours[text], strict=True):
                near[row] = 0.0
                near[row, column] = 1.0
    return np.asarray(near)


def _by_text(text: str, found: Sequence[Unit]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for number, unit in enumerate(found):
        places.setdefault(text[unit.start : unit.end], []).append(number)
    return places


# Writing


def _rendered(line: TaggedLine, translation: str, found: Sequence[Unit]) -> str:
    """Return the translation with the tags of the line where their elements are."""
    at: list[list[Tag]] = [[] for _ in range(len(found) + 1)]
    for gap, tag in _in_order(line.root):
        at[gap].append(tag)
    spelt = str.maketrans(line.spelt)
    written, last = [], 0
    for number, tags in enumerate(at):
        start = found[number - 1].end if number else 0
        end = found[number].start if number < len(found) else len(translation)
        written.append(translation[last:start].translate(spelt))
        written.append(_filled(translation, start, end, tags) if tags else translation[start:end])
        last = end
    return "".join(written)


def _in_order(root: Element) -> Iterator[tuple[int, Tag]]:
    """Yield the gap and the tag of everything below `root`, from left to right, with pairs nested."""
    free, path = list[tuple[int, int, Tag]](), [(root, iter(_sorted(root)))]
    nested: list[tuple[int, Tag]] = []
    now = 0
    while path:
        element, parts = path[-1]
        part = next(parts, None)
        if part is None:
            path.pop()
            if element.tags and not element.is_free:
                now = max(now, element.place[1])
                nested.extend((now, tag) for tag in element.tags[1:])
            continue
        if part.is_free:
            free += [(part.place[0], 0, part.tags[0]), (part.place[1], 1, part.tags[1])]
        else:
            now = max(now, part.place[0])
            nested.append((now, part.tags[0]))
        path.append((part, iter(_sorted(part))))
    yield from sorted([*nested, *((gap, tag) for gap, _, tag in free)], key=lambda found: found[0])


def _sorted(element: Element) -> list[Element]:
    return sorted(element.parts, key=lambda one: (one.place[0], one.place[0] < one.place[1], one.order))


def _filled(text: str, start: int, end: int, tags: Sequence[Tag]) -> str:
    """Return what stands in a gap of the translation: tags, and spaces beside them as in the source."""
    space = " " if start < end else ""
    k = len(tags)
    wanted = [False] * (k + 1)
    for i, tag in enumerate(tags):
        counts = bool(space) or tag.kind is Kind.point
        wanted[i] |= tag.spaces[0] and counts
        wanted[i + 1] |= tag.spaces[1] and counts
    sides = text[:start][-1:], text[end : end + 1]
    are_apart = [bool(space) or parts_words(one) for one in sides]
    wanted[0] |= are_apart[0] and tags[0].kind is Kind.point and not tags[0].joins[0]
    wanted[k] |= are_apart[1] and tags[-1].kind is Kind.point and not tags[-1].joins[1]
    wanted[0] &= start > 0
    wanted[k] &= end < len(text) and not (not space and CLOSING_MARK.match(text[end : end + 1]))
    if space and not any(wanted) and not any(tag.breaks for tag in tags):
        leading = next((i for i, tag in enumerate(tags) if tag.kind is Kind.opens), k)
        wanted[leading] = True
    parts = [" " if wanted[0] else ""]
    for tag, spaced in zip(tags, wanted[1:], strict=True):
        parts += [tag.raw, " " if spaced else ""]
    return "".join(parts)
